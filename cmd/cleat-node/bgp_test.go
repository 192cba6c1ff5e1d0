package main_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"
	"cleat/network/bgp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// reflector is a configuration of BIRD for a route reflector of all hosts on the segment.
const reflector = `router id 192.0.2.254;
protocol device { }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }
protocol bgp hosts {
	local 192.0.2.254 as 65001;
	neighbor range 192.0.2.0/24 internal;
	rr client;
	graceful restart on;
	ipv4 { import all; export where source = RTS_BGP; };
}
`

// TestBGP is two hosts that learn each other's blocks from a reflector:
//
//	a, b ┐
//	     ├ switch
//	.254 ┘ reflector
func TestBGP(t *testing.T) {
	t.Parallel()
	bird, err := program.Find("bird")
	if err != nil {
		t.Skip("bird is not installed; Debian's package is bird2")
	}
	c := newCluster(t, 2)
	router, err := lab.NewNode("router")
	must(t, err)
	_, err = c.sw.Plug(lab.End{Node: router, Name: "eth0"}, 0)
	must(t, err)
	must(t, router.Address("eth0", netip.MustParsePrefix("192.0.2.254/24")))
	file := filepath.Join(c.dir, "bird.conf")
	must(t, os.WriteFile(file, []byte(reflector), 0o600))
	proc, err := router.Start(lab.Command{Args: []string{bird, "-f", "-c", file, "-s", filepath.Join(c.dir, "bird.socket"), "-P", filepath.Join(c.dir, "bird.pid")}})
	must(t, err)
	t.Cleanup(func() { proc.Kill(); proc.Wait() })
	flags := []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254"}
	a, b := c.hosts[0], c.hosts[1]
	a.node(append([]string{"up", "--name", a.name, "--address", a.addr.String()}, flags...)...)
	b.node(append([]string{"up", "--name", b.name, "--token", a.token()}, flags...)...)
	a.createSpan("web")
	kA, kB := a.container("a0", "web"), b.container("b0", "web")
	kA.serve()
	kB.serve()
	learned := func(h *host, from *container) {
		t.Helper()
		c.eventually("route of "+h.name, func() error {
			all, err := (&bgp.Kernel{NS: h.NS}).Prefixes()
			if err == nil && (len(all) != 1 || !all[0].Contains(from.addr)) {
				err = fmt.Errorf("host %s has learned %s, want a block with %s", h.name, all, from.addr)
			}
			return err
		})
	}
	learned(a, kB)
	learned(b, kA)

	t.Run("status shows the peer", func(t *testing.T) {
		c.eventually("status", func() error {
			s, err := a.status()
			if err == nil && (len(s.Peers) != 1 || !s.Peers[0].Established || s.Peers[0].Sent != 1 || s.Peers[0].Received != 1) {
				err = fmt.Errorf("peers are %+v", s.Peers)
			}
			return err
		})
		if out := a.node("status"); !strings.Contains(out, "192.0.2.254") || !strings.Contains(out, "established") {
			t.Error(out)
		}
	})
	// byRouter returns an error unless a host reaches a container by a route of BGP.
	byRouter := func(h *host, to *container) error {
		k, err := link.Handle(h.NS)
		if err != nil {
			return err
		}
		defer k.Close()
		got, err := k.RouteGetWithOptions(to.addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		if err == nil && (len(got) != 1 || got[0].Protocol != bgp.Protocol || got[0].Gw.String() != to.host.addr.String()) {
			err = fmt.Errorf("host %s reaches %s by %v, want %s as next hop", h.name, to.addr, got, to.host.addr)
		}
		return err
	}
	t.Run("containers reach each other by the routes of BGP", func(t *testing.T) {
		must(t, byRouter(a, kB))
		must(t, byRouter(b, kA))
		for _, k := range [][2]*container{{kA, kB}, {kB, kA}} {
			c.eventually("by BGP", func() error { return k[0].reaches(k[1]) })
		}
	})
	t.Run("a killed cleat-node leaves routes, here and elsewhere", func(t *testing.T) {
		must(t, unix.Kill(a.pid(), unix.SIGKILL))
		c.eventually("end", func() error {
			if _, err := a.status(); err == nil {
				return fmt.Errorf("cleat-node still answers")
			}
			return nil
		})
		must(t, kB.reaches(kA))
		a.node("up")
		c.eventually("session", func() error {
			s, err := a.status()
			if err == nil && (len(s.Peers) != 1 || !s.Peers[0].Established) {
				err = fmt.Errorf("peers are %+v", s.Peers)
			}
			return err
		})
		learned(a, kB)
		learned(b, kA)
		c.eventually("after the restart", func() error { return kB.reaches(kA) })
	})
	t.Run("a moved container's address is announced by its new host", func(t *testing.T) {
		moving := a.container("moving", "web")
		a.cleat("net", "disconnect", "web", moving.path)
		moved := &container{Node: moving.Node, host: b, name: moving.name, path: moving.path}
		moved.connect("web", "--ip", moving.addr.String())
		moved.serve()
		c.eventually("a route of one address", func() error {
			all, err := (&bgp.Kernel{NS: a.NS}).Prefixes()
			if err == nil && !slices.Contains(all, netip.PrefixFrom(moved.addr, 32)) {
				err = fmt.Errorf("host a has learned %s", all)
			}
			return errors.Join(err, byRouter(a, moved), kA.reaches(moved))
		})
		b.cleat("net", "disconnect", "web", moved.path)
	})
	t.Run("a host's address changes", func(t *testing.T) {
		b.move(netip.MustParseAddr("192.0.2.77"))
		took := c.eventually("reached at its new address", func() error { return errors.Join(kA.reaches(kB), kB.reaches(kA)) })
		took2 := c.eventually("by BGP", func() error { return byRouter(a, kB) })
		t.Logf("reached after %s, by BGP after another %s", took.Round(10*time.Millisecond), took2.Round(10*time.Millisecond))
	})
	t.Run("without peers the routes go", func(t *testing.T) {
		a.node("down")
		c.eventually("end", func() error {
			_, err := a.run(t.Context(), "cleat-node", "up", "--bgp-peer", "none")
			return err
		})
		c.eventually("removal", func() error {
			all, err := (&bgp.Kernel{NS: a.NS}).Prefixes()
			if err == nil && len(all) > 0 {
				err = fmt.Errorf("host a still has routes to %s", all)
			}
			return err
		})
	})
}
