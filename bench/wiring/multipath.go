package wiring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"cleat/lab"
	"cleat/link"
)

// single uses the first of the links as it is. There are no others.
func single(nw *Network) error {
	p, err := nw.parallel()
	if err != nil {
		return err
	}
	nw.across(p, p.linkAddr(0, 2), linkName(0))
	return nil
}

// across makes the pairs: clients on the left, servers on the right, at one
// address.
func (nw *Network) across(p parallel, server netip.Addr, device string) {
	for i := range nw.cfg.Pairs {
		at := netip.AddrPortFrom(server, port(i))
		nw.Pairs = append(nw.Pairs, Pair{Client: p.left, Server: p.right, ClientNode: p.left, Device: device, Listen: at, Dial: at})
	}
}

// mostMPTCP are the kernel's highest limits (MPTCP_PM_ADDR_MAX).
const mostMPTCP = 8

// mptcp dials over the first link. The server signals its addresses on the
// others; the client opens a subflow to each, which the routes lead over that
// address's own link, so that no link has two.
func mptcp(nw *Network) error {
	p, err := nw.parallel()
	if err != nil {
		return err
	}
	for _, n := range []*lab.Node{p.left, p.right} {
		if err := link.SetMPTCPLimits(n.NS, link.MPTCPLimits{Subflows: mostMPTCP, AcceptedAddAddrs: mostMPTCP}); err != nil {
			return err
		}
	}
	used, err := p.signal()
	if err != nil {
		return err
	}
	if used < p.spec.Links {
		nw.Notes = append(nw.Notes, fmt.Sprintf("the kernel takes %d of the %d links: it refused a further MPTCP endpoint", used, p.spec.Links))
	}
	nw.across(p, p.linkAddr(0, 2), linkName(0))
	for i := range nw.Pairs { // a subflow's address needs a listener, too
		nw.Pairs[i].Listen = netip.AddrPortFrom(p.anywhere(), port(i))
	}
	return nil
}

// anywhere is the unspecified address of the links' version of IP.
func (p parallel) anywhere() netip.Addr {
	if p.ipv6 {
		return netip.IPv6Unspecified()
	}
	return everywhere
}

// signal adds an endpoint for each link but the first until the kernel refuses,
// and tells how many links are used.
func (p parallel) signal() (int, error) {
	for i := 1; i < p.spec.Links; i++ {
		err := link.AddMPTCPEndpoint(p.right.NS, link.MPTCPEndpoint{Addr: p.linkAddr(i, 2), ID: i, Signal: true, Device: linkName(i)})
		if err != nil && i > mostMPTCP {
			return i, nil // what the limit is, only the refusal tells
		}
		if err != nil {
			return i, err
		}
	}
	return p.spec.Links, nil
}

// Addresses and device of a tunnel over the links.
var innerAddrs = [...]netip.Prefix{1: netip.MustParsePrefix("198.18.250.1/30"), 2: netip.MustParsePrefix("198.18.250.2/30")}

const innerDevice = "mp0"

// throughTunnel makes the pairs of a tunnel that the programs given are about to
// make, when it carries connections.
func (nw *Network) throughTunnel(p parallel, programs []lab.Proc) error {
	server := innerAddrs[2].Addr()
	if err := nw.awaitPath(p, netip.AddrPortFrom(server, port(0)), programs); err != nil {
		return err
	}
	nw.across(p, server, innerDevice)
	return nil
}

// endedFor is how long a program must have ended before it counts as such: of a
// container that is just being made processes end that are not the program.
const endedFor = 400 * time.Millisecond

// errEnded says that a program that makes the tunnel has ended.
var errEnded = errors.New("its program has ended")

// whileRunning calls ready until it succeeds, as long as the programs run.
func (nw *Network) whileRunning(programs []lab.Proc, ready func() error) error {
	ctx, cancel := context.WithCancelCause(nw.ctx)
	defer cancel(nil)
	lived := time.Now()
	err := poll(ctx, func() error {
		if !slices.ContainsFunc(programs, hasEnded) {
			lived = time.Now()
		}
		if time.Since(lived) > endedFor {
			cancel(errEnded)
		}
		return ready()
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// awaitPath waits until a connection from left to right passes at an address, as
// long as the programs run.
func (nw *Network) awaitPath(p parallel, at netip.AddrPort, programs []lab.Proc) error {
	var listener net.Listener
	err := nw.whileRunning(programs, func() error {
		return p.right.NS.Do(func() (err error) {
			listener, err = (&net.ListenConfig{}).Listen(nw.ctx, "tcp", at.String())
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("wait for the tunnel's address: %w", err)
	}
	defer listener.Close()
	err = nw.whileRunning(programs, func() error {
		return p.left.NS.Do(func() error {
			c, err := (&net.Dialer{Timeout: time.Second}).DialContext(nw.ctx, "tcp", at.String())
			if err != nil {
				return err
			}
			return c.Close()
		})
	})
	if err != nil {
		return fmt.Errorf("reach %s through the tunnel: %w", at, err)
	}
	return nil
}

// hasEnded tells whether a program that nobody has waited for is a zombie. One
// whose other thread is about to become another program looks like one for a
// moment, but for the number of its threads.
func hasEnded(p lab.Proc) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return false
	}
	// The name, in parentheses, may hold anything; the state is field 3 and the
	// number of threads field 20 of proc(5).
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 20-3 && string(fields[0]) == "Z" && string(fields[20-3]) == "1"
}

// awaitDevice waits until a program has made its device, and gives it the
// side's inner address.
func (nw *Network) awaitDevice(n *lab.Node, side int, program lab.Proc) error {
	err := nw.whileRunning([]lab.Proc{program}, func() error {
		l, err := link.Find(n.NS, innerDevice)
		if err != nil {
			return err
		}
		if err := l.AddAddr(innerAddrs[side]); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		return l.Up()
	})
	if err != nil {
		return fmt.Errorf("wait for %s on %s: %w", innerDevice, n, err)
	}
	return nil
}

// weights are the links' rates in the measure in which the least is so much, rounded.
func weights(p parallel, unit int) []int {
	plan := p.spec.Plan()
	least := plan[0].RateBitsPerSec
	for _, l := range plan {
		least = min(least, l.RateBitsPerSec)
	}
	out := slices.Repeat([]int{unit}, len(plan))
	if least <= 0 {
		return out
	}
	for i, l := range plan {
		out[i] = int(float64(unit)*l.RateBitsPerSec/least + 0.5)
	}
	return out
}

// bytesPerSecond writes a link's rate as rivals want it; none is a thousand
// million.
func bytesPerSecond(bitsPerSec float64) string {
	if bitsPerSec <= 0 {
		bitsPerSec = 8e9
	}
	return strconv.FormatInt(int64(bitsPerSec/8), 10)
}
