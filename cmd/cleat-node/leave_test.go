package main_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/span"

	"golang.org/x/sys/unix"
)

// TestLeave has hosts leave a cluster, the one with the leader of the registry first, until one is left.
func TestLeave(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 4)
	if _, err := c.hosts[0].run(t.Context(), "cleat-node", "leave"); err == nil || !strings.Contains(err.Error(), "a0 on network web") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("left with a container: %v", err)
	}
	s := all[2].stream(all[3])
	first := c.hosts[0]
	for i, h := range c.hosts[:3] {
		left := c.hosts[i+1:]
		if i == 2 {
			s.losesNone()
		}
		if i == 0 {
			h.cleat("net", "disconnect", "web", all[0].path)
			h.node("leave")
		} else {
			h.node("leave", "--force")
		}
		c.eventually("the others agree", func() error { return c.agree(left...) })
		c.eventually("the registry has members", func() error {
			s, err := left[0].status()
			if err == nil && (len(s.Registry.Members) == 0 || slices.Contains(s.Registry.Members, h.name)) {
				err = fmt.Errorf("members %s", s.Registry.Members)
			}
			return err
		})
		if out := h.cleat("net", "ls"); strings.Contains(out, "web") {
			t.Errorf("host %s has networks: %s", h.name, out)
		}
		if _, err := link.Find(h.NS, span.Device); err == nil {
			t.Errorf("host %s has the device %s", h.name, span.Device)
		}
		for _, name := range []string{"node.json", "identity.pem", "etcd"} {
			if _, err := os.Stat(h.file(name)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("host %s has %s: %v", h.name, name, err)
			}
		}
	}
	last := c.hosts[3]
	last.container("new", "web")
	if _, err := last.run(t.Context(), "cleat-node", "leave"); err == nil {
		t.Error("the last host has left with containers")
	}
	// One that has left begins a cluster, or joins again.
	first.node("up", "--name", first.name, "--token", last.token())
	c.eventually("it is a host again", func() error { return c.agree(first, last) })
	c.hosts[1].node("up", "--name", "b", "--address", c.hosts[1].addr.String())
	c.eventually("a cluster of its own", func() error { return c.agree(c.hosts[1]) })
}

// TestLeaveAfterDeath has a host leave right after another one has died. Its member is needed until that one is back.
func TestLeaveAfterDeath(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	c.settled(3)
	a, b, dead := c.hosts[0], c.hosts[1], c.hosts[2]
	must(t, unix.Kill(dead.pid(), unix.SIGKILL))
	left := make(chan error, 1)
	go func() {
		_, err := b.run(t.Context(), "cleat-node", "leave")
		left <- err
	}()
	c.eventually("a sees the dead host, by the registry", func() error {
		s, err := a.status()
		if err == nil && !s.Registry.Answers {
			err = errors.New("the registry does not answer")
		}
		return errors.Join(err, a.sees(dead, false))
	})
	select {
	case err := <-left:
		t.Fatalf("b has left: %v", err)
	default:
	}
	dead.node("up")
	must(t, <-left)
	c.eventually("the others agree", func() error { return c.agree(a, dead) })
}
