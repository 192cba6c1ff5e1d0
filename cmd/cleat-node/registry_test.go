package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// etcd returns a client of the registry's member on the host.
func (h *host) etcd() *clientv3.Client {
	h.c.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://192.0.2.1:7790"}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", h.file("etcd.socket"))
		})}})
	must(h.c.t, err)
	h.c.t.Cleanup(func() { c.Close() })
	return c
}

// TestRegistryDown kills all nodes, and starts them again.
func TestRegistryDown(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	s := all[0].stream(all[1])
	c.eventually("all find each other", func() error { return reachAll(all) })
	for _, h := range c.hosts {
		h.kill()
	}
	if err := reachAll(all); err != nil {
		t.Error(err)
	}
	extra := all[0].host.newContainer("extra")
	extra.connect("web")
	extra.serve()
	var starting sync.WaitGroup
	for _, h := range c.hosts {
		starting.Go(func() { h.run(t.Context(), "cleat-node", "up") })
	}
	starting.Wait()
	took := c.eventually("all hosts agree", func() error { return errors.Join(c.agree(c.hosts...), reachAll(append(all, extra))) })
	t.Logf("all hosts agree %s after cleat-node up", took.Round(100*time.Millisecond))
	s.losesNone()
}

// TestCompacted takes a host that follows the registry off the network. When it is back, the registry has forgotten
// what has changed meanwhile.
func TestCompacted(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 4)
	a, follower := c.hosts[0], c.hosts[3]
	s, err := a.status()
	must(t, err)
	for _, h := range c.hosts {
		if !slices.Contains(s.Registry.Members, h.name) {
			follower = h
		}
	}
	follower.unplug()
	c.eventually("others notice", func() error { return a.sees(follower, false) })
	var gone []*container
	for i := range 5 {
		k := a.container(fmt.Sprintf("k%d", i), "web")
		k.serve()
		gone = append(gone, k)
	}
	k := gone[0]
	for _, other := range gone[1:] {
		a.cleat("net", "disconnect", "web", other.path)
	}
	a.cleat("net", "create", "shop", "--span")
	e := a.etcd()
	now, err := e.Get(t.Context(), "/cleat/v1/cluster")
	must(t, err)
	_, err = e.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	must(t, err)
	follower.plug()
	from := all[slices.Index(c.hosts, follower)]
	took := c.eventually("the host knows what has changed", func() error {
		if err := follower.has("shop"); err != nil {
			return err
		}
		for _, other := range gone[1:] {
			if got, err := from.resolve(other.name); err == nil {
				return fmt.Errorf("%s is at %s", other.name, got)
			}
		}
		return errors.Join(c.agree(c.hosts...), from.knows(k), from.reaches(k))
	})
	t.Logf("all hosts agree after %s", took.Round(100*time.Millisecond))
}

// smallDisk puts the host's files on a disk of their own. It returns functions that fill it, and free the space again.
func (h *host) smallDisk(bytes int) (fill, free func()) {
	t := h.c.t
	t.Helper()
	must(t, os.MkdirAll(h.state, 0o755))
	must(t, unix.Mount("tmpfs", h.state, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", bytes)))
	t.Cleanup(func() { unix.Unmount(h.state, unix.MNT_DETACH) })
	filler := filepath.Join(h.state, "filler")
	fill = func() {
		f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		must(t, err)
		defer f.Close()
		for size := 1 << 20; size > 0; size /= 2 {
			for err == nil {
				_, err = f.Write(make([]byte, size))
			}
			err = nil
		}
	}
	return fill, func() { must(t, os.Remove(filler)) }
}

// TestDiskFull fills the disk of each of three members of the registry in turn, and of a host with the only member.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	for _, hosts := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d hosts", hosts), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, hosts)
			full := c.hosts[hosts-1]
			fill, free := full.smallDisk(300 << 20)
			c.up()
			all := c.web()
			c.settled(hosts)
			other := full.container("other", "web")
			other.serve()
			all = append(all, other)
			c.eventually("containers reach each other", func() error { return reachAll(all) })
			s := all[0].stream(other)
			pid := full.pid()
			files := map[string][]byte{}
			for _, name := range []string{"node.json", "identity.pem"} {
				text, err := os.ReadFile(full.file(name))
				must(t, err)
				files[name] = text
			}
			fill()
			var extra []*container
			c.eventually("the host says so", func() error {
				if hosts > 1 {
					k := c.hosts[0].container(fmt.Sprintf("extra%d", len(extra)), "web")
					extra = append(extra, k)
				} else {
					full.run(t.Context(), "cleat", "net", "create", fmt.Sprintf("n%d", len(extra)), "--span")
					extra = append(extra, nil)
				}
				s, err := full.status()
				problems := strings.Join(s.Problems, "\n")
				said := strings.Contains(problems, "member of the registry is started when") ||
					hosts == 1 && strings.Contains(problems, "is nearly full") // an etcd that needs no space goes on
				if err == nil && !said {
					err = fmt.Errorf("host %s has the problems %q", full.name, s.Problems)
				}
				return err
			})
			s2, err := full.status()
			must(t, err)
			t.Logf("problems: %q", s2.Problems)
			if err := reachAll(all); err != nil {
				t.Error(err)
			}
			free()
			took := c.eventually("all hosts agree", func() error { return c.agree(c.hosts...) })
			t.Logf("all hosts agree after %s, with %d members", took.Round(100*time.Millisecond), len(s2.Registry.Members))
			c.settled(hosts)
			if now := full.pid(); now != pid {
				t.Errorf("the process was %d, and is %d", pid, now)
			}
			for name, was := range files {
				if now, err := os.ReadFile(full.file(name)); err != nil || !bytes.Equal(now, was) {
					t.Errorf("%s has %q, %v", name, now, err)
				}
			}
			last := full.container("last", "web")
			last.serve()
			c.eventually("a new container is known", func() error { return all[0].knows(last) })
			s.losesNone()
		})
	}
}
