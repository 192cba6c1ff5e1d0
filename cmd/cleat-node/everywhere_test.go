package main_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/netns"
)

// askAt returns the words with which what listens at an address answers: its name, and the address that it sees.
func askAt(from *netns.NS, to netip.Addr, port uint16) ([]string, error) {
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), 300*time.Millisecond)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Second))
	b := make([]byte, 100)
	n, err := c.Read(b)
	return strings.Fields(string(b[:n])), err
}

// answerAs makes a namespace answer with a name and the client's address.
func answerAs(t *testing.T, in *netns.NS, port uint16, name string) {
	t.Helper()
	labtest.Serve(t, in, fmt.Sprintf(":%d", port), func(c net.Conn) {
		if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
			fmt.Fprintf(c, "%s %s", name, at.Addr().Unmap())
		}
	})
}

// TestEverywhere publishes ports of containers on all hosts:
//
//	a 192.0.2.1 ka, with ports    b 192.0.2.2 kb    c 192.0.2.3 kc    outside 192.0.2.99
func TestEverywhere(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	a, b, last := c.hosts[0], c.hosts[1], c.hosts[2]
	outside, err := lab.NewNode("outside")
	must(t, err)
	_, err = c.sw.Plug(lab.End{Node: outside, Name: "eth0"}, 0)
	must(t, err)
	must(t, outside.Address("eth0", netip.MustParsePrefix("192.0.2.99/24")))
	must(t, outside.Address("eth0", netip.MustParsePrefix("2001:db8::99/64")))
	v6 := map[*host]netip.Addr{}
	for i, h := range c.hosts {
		v6[h] = netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1))
		must(t, h.Address("eth0", netip.PrefixFrom(v6[h], 64)))
	}
	a.createSpan("web", "--ipv6")
	ka := a.container("ka", "web", "--publish", "everywhere:8080:80")
	kb, kc := b.container("kb", "web"), last.container("kc", "web")
	for _, k := range []*container{ka, kb, kc} {
		answerAs(t, k.NS, 80, k.name)
	}
	// reached waits until an address of each host leads to a container, from each namespace, which may use any client's address.
	reached := func(t *testing.T, port uint16, want string, from ...*netns.NS) {
		t.Helper()
		for _, h := range c.hosts {
			for _, f := range from {
				c.eventually(fmt.Sprintf("%s asks port %d of host %s", f, port, h.name), func() error {
					got, err := askAt(f, h.addr, port)
					if err == nil && got[0] != want {
						err = fmt.Errorf("the answer is %q", got)
					}
					return err
				})
			}
		}
	}
	everybody := []*netns.NS{outside.NS, a.NS, b.NS, last.NS, kb.NS, kc.NS}
	t.Run("each host's address leads to the container", func(t *testing.T) { reached(t, 8080, "ka", everybody...) })
	t.Run("the client's address", func(t *testing.T) {
		for _, tt := range []struct {
			from, to string
			ns       *netns.NS
			at       *host
			want     netip.Addr
		}{
			{"outside", "the container's host", outside.NS, a, netip.MustParseAddr("192.0.2.99")},
			{"outside", "another host", outside.NS, b, ownAddress(t, b)},
			{"a container of the network", "its own host, which is another one", kb.NS, b, kb.addr},
		} {
			if got, err := askAt(tt.ns, tt.at.addr, 8080); err != nil || got[1] != tt.want.String() {
				t.Errorf("from %s to %s, the container sees %q, want %s; %v", tt.from, tt.to, got, tt.want, err)
			}
		}
	})
	t.Run("IPv6", func(t *testing.T) {
		for _, h := range c.hosts {
			s, err := h.status()
			must(t, err)
			isOfHost := func(a netip.Addr) bool { return contains(s.Networks[0], a) } // it may have several blocks
			c.eventually("port 8080 of host "+h.name+" by IPv6", func() error {
				got, err := askAt(outside.NS, v6[h], 8080)
				if err != nil {
					return err
				}
				if seen, err := netip.ParseAddr(got[1]); err != nil || got[0] != "ka" || h == a && seen.String() != "2001:db8::99" || h != a && !isOfHost(seen) {
					return fmt.Errorf("%q answers; want a client in %s", got, s.Networks[0].Blocks)
				}
				return nil
			})
		}
	})
	t.Run("rules", func(t *testing.T) {
		last.cleat("net", "deny", "192.0.2.99/32 to web/ka")
		for _, h := range c.hosts {
			c.eventually("the rule holds on "+h.name, func() error {
				if got, err := askAt(outside.NS, h.addr, 8080); err == nil {
					return fmt.Errorf("%q answers", got)
				}
				return nil
			})
		}
		last.cleat("net", "deny", "--remove", "192.0.2.99/32 to web/ka")
		last.policy("web", "default deny")
		c.eventually("the network denies by default", func() error {
			if got, err := askAt(kb.NS, ka.addr, 80); err == nil {
				return fmt.Errorf("%q answers", got)
			}
			return nil
		})
		reached(t, 8080, "ka", outside.NS)
		last.policy("web", "")
		reached(t, 8080, "ka", kb.NS)
	})
	t.Run("nobody else gets the port", func(t *testing.T) {
		for _, port := range []string{"everywhere:8080:80", "8080:80", "127.0.0.1:8080:80"} {
			out, err := b.run(t.Context(), "cleat", "net", "publish", "kb", port)
			if err == nil || !strings.Contains(err.Error(), "ka of host a on network web") {
				t.Errorf("publish %s: %s, %v; want an error that names ka on host a", port, out, err)
			}
		}
	})
	t.Run("a program has the port on a host", func(t *testing.T) {
		var l net.Listener
		must(t, last.NS.Do(func() (err error) { l, err = net.Listen("tcp", ":9090"); return err }))
		defer l.Close()
		a.cleat("net", "publish", "ka", "everywhere:9090:80")
		c.eventually("b publishes it", func() error { _, err := askAt(outside.NS, b.addr, 9090); return err })
		c.eventually("c says why it does not", func() error {
			s, err := last.status()
			if err == nil && !slices.ContainsFunc(s.Problems, func(p string) bool {
				return strings.Contains(p, "port everywhere:9090:80") && strings.Contains(p, "ka of host a on network web is not published on this host")
			}) {
				err = fmt.Errorf("it says %q", s.Problems)
			}
			return err
		})
		l.Close()
		c.eventually("c publishes it", func() error { _, err := askAt(outside.NS, last.addr, 9090); return err })
		c.eventually("c is content", func() error {
			s, err := last.status()
			if err == nil && len(s.Problems) > 0 {
				err = fmt.Errorf("it says %q", s.Problems)
			}
			return err
		})
	})
	t.Run("the container moves", func(t *testing.T) {
		a.cleat("net", "disconnect", "web", ka.path)
		for _, h := range c.hosts {
			c.eventually("nothing answers on "+h.name, func() error {
				if got, err := askAt(outside.NS, h.addr, 8080); err == nil {
					return fmt.Errorf("%q answers", got)
				}
				return nil
			})
		}
		c.eventually("b knows that the port is free", func() error {
			_, err := b.run(t.Context(), "cleat", "net", "publish", "kb", "everywhere:8080:80")
			return err
		})
		reached(t, 8080, "kb", outside.NS, kc.NS)
	})
	t.Run("a killed node changes nothing", func(t *testing.T) {
		for _, h := range c.hosts {
			h.kill()
		}
		reached(t, 8080, "kb", outside.NS)
		for _, h := range c.hosts {
			h.node("up")
		}
		reached(t, 8080, "kb", outside.NS)
		b.cleat("net", "unpublish", "kb", "8080:80")
		for _, h := range c.hosts {
			c.eventually("the port is withdrawn on "+h.name, func() error {
				if got, err := askAt(outside.NS, h.addr, 8080); err == nil {
					return fmt.Errorf("%q answers", got)
				}
				return nil
			})
		}
	})
	t.Run("mistakes", func(t *testing.T) {
		a.cleat("net", "create", "alone", "--subnet", "10.20.0.0/24")
		k := a.newContainer("k")
		for _, tt := range []struct{ network, port, want string }{
			{"alone", "everywhere:8080:80", "network alone does not span hosts"},
			{"web", "everywhere:192.0.2.1:8080:80", "other hosts don't have the address 192.0.2.1"},
		} {
			_, err := a.run(t.Context(), "cleat", "net", "connect", tt.network, k.path, "--publish", tt.port)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", tt.port, err, tt.want)
			}
		}
	})
}

// policy replaces the rules of a network.
func (h *host) policy(network, rules string) {
	h.c.t.Helper()
	path := filepath.Join(h.c.dir, "rules")
	must(h.c.t, os.WriteFile(path, []byte(rules+"\n"), 0o600))
	h.cleat("net", "policy", network, path)
}

// ownAddress returns the address that a host has itself in the only network: the first one of its block.
func ownAddress(t *testing.T, h *host) netip.Addr {
	t.Helper()
	s, err := h.status()
	must(t, err)
	if len(s.Networks) == 0 || len(s.Networks[0].Blocks) == 0 {
		t.Fatal(errors.New("no block"))
	}
	return s.Networks[0].Blocks[0].Addr()
}
