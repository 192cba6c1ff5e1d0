package main_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/overlay/control"
	"cleat/overlay/gate"
	"cleat/overlay/trust"
)

func (h *host) file(name string) string { return filepath.Join(control.Dir(h.state), name) }

// identity returns the identity of a host.
func (h *host) identity() *trust.Identity {
	h.c.t.Helper()
	text, err := os.ReadFile(h.file("identity.pem"))
	must(h.c.t, err)
	id, err := trust.ParseIdentity(text)
	must(h.c.t, err)
	return id
}

// dial connects from a host to the gate of another one.
func (h *host) dial(id *trust.Identity, to *host, protocol string) (c net.Conn, err error) {
	if doErr := h.NS.Do(func() error {
		c, err = gate.Dial(h.c.t.Context(), id, to.addr.String()+":7790", protocol, nil)
		return nil
	}); doErr != nil {
		return nil, doErr
	}
	return c, err
}

// knowsThatItWasRemoved returns an error unless the host's status and log say so.
func (h *host) knowsThatItWasRemoved() error {
	s, err := h.status()
	if err != nil {
		return err
	}
	const want = "this host was removed from the cluster"
	log, err := os.ReadFile(h.file("log"))
	if err != nil {
		return err
	}
	if !strings.Contains(strings.Join(s.Problems, "\n"), want) || !strings.Contains(string(log), want) {
		return fmt.Errorf("host %s has the problems %q", h.name, s.Problems)
	}
	return nil
}

// TestRemovedHostIsLockedOut removes a host with a member of the registry and one without. They can't connect to any other one, with
// whatever keys they have. What they have stays.
func TestRemovedHostIsLockedOut(t *testing.T) {
	t.Parallel()
	c, _ := webCluster(t, 4)
	member, client := c.hosts[1], c.hosts[3]
	s, err := c.hosts[0].status()
	must(t, err)
	for _, h := range c.hosts[1:] {
		if strings.Contains(strings.Join(s.Registry.Members, " "), h.name) {
			member = h
		} else {
			client = h
		}
	}
	second := member.container("second", "web")
	second.serve()
	for _, gone := range []*host{member, client} {
		id := gone.identity()
		var open []net.Conn
		stay := []*host{c.hosts[0]}
		for _, h := range c.hosts[1:] {
			if h != member && h != client {
				stay = append(stay, h)
			}
		}
		for _, h := range stay {
			for _, protocol := range []string{gate.Host, gate.Peer} {
				conn, err := gone.dial(id, h, protocol)
				must(t, err)
				defer conn.Close()
				open = append(open, conn)
			}
		}
		c.hosts[0].node("remove", gone.name)
		for _, conn := range open {
			conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // less than the gate's own deadline
			if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a connection of host %s is open: %v", gone.name, err)
			}
		}
		for _, h := range stay {
			for _, protocol := range []string{gate.Host, gate.Registry} {
				if _, err := gone.dial(id, h, protocol); !errors.As(err, new(*gate.RemovedError)) {
					t.Errorf("host %s connects to %s: %v", gone.name, h.name, err)
				}
			}
		}
		c.eventually("the host notices", gone.knowsThatItWasRemoved)
		if gone == member {
			c.forge(gone, stay)
		}
	}
	c.eventually("the registry has members of its hosts only", func() error {
		s, err := c.hosts[0].status()
		if err == nil && (len(s.Hosts) != 2 || strings.Contains(strings.Join(s.Registry.Members, " "), member.name)) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	// The data plane of a host that was removed is as it was.
	again := member.container("again", "web")
	if err := again.reaches(second); err != nil {
		t.Error(err)
	}
	// With a new token it is a host again.
	member.node("down")
	member.node("up", "--name", member.name, "--token", c.hosts[0].token())
	c.eventually("it is a host again", func() error { return c.hosts[0].sees(member, true) })
}

// forge tries to get in with a copy of the authority's key, which a host that had a member of the registry may have.
func (c *cluster) forge(gone *host, to []*host) {
	c.t.Helper()
	text, err := os.ReadFile(c.hosts[0].file("authority.pem"))
	must(c.t, err)
	a, err := trust.ParseAuthority(text)
	must(c.t, err)
	for _, name := range []string{gone.name, c.hosts[0].name, "mole"} {
		id, err := trust.NewIdentity(name)
		must(c.t, err)
		id, err = id.SignedBy(a, time.Now())
		must(c.t, err)
		for _, h := range to {
			for _, protocol := range []string{gate.Host, gate.Registry} {
				if _, err := gone.dial(id, h, protocol); !errors.As(err, new(*gate.RemovedError)) {
					c.t.Errorf("a forged host %s connects to %s: %v", name, h.name, err)
				}
			}
			conn, err := gone.dial(id, h, gate.Peer)
			if err == nil { // the handshake succeeds, and nothing after it
				_, err = conn.Read(make([]byte, 1))
				conn.Close()
			}
			if err == nil {
				c.t.Errorf("a forged host %s speaks with the member of %s", name, h.name)
			}
		}
	}
}
