package wiring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"cleat/internal/procstat"
	"cleat/lab"
	"cleat/link"
)

// single uses one link without any tunnel. There are no others.
func single(nw *Network) error {
	h, err := nw.linkHosts()
	if err != nil {
		return err
	}
	nw.addPairsTo(h.right, h.linkAddr(0, 2), h.left, linkName(0))
	return nil
}

// maxMPTCP is the kernel's highest value of both limits (MPTCP_PM_ADDR_MAX).
const maxMPTCP = 8

// mptcp dials over the first link. The server signals its addresses on the others. The
// client opens a subflow to each, which its route leads over that address's link, so that
// no link carries two.
func mptcp(nw *Network) error {
	h, err := nw.linkHosts()
	if err != nil {
		return err
	}
	for _, n := range h.sides() {
		if err := link.SetMPTCPLimits(n.NS, link.MPTCPLimits{Subflows: maxMPTCP, AcceptedAddAddrs: maxMPTCP}); err != nil {
			return err
		}
	}
	used, err := h.signal()
	if err != nil {
		return err
	}
	if used < h.spec.Links {
		nw.Notes = append(nw.Notes, fmt.Sprintf("the kernel uses %d of the %d links: it refused a further MPTCP endpoint", used, h.spec.Links))
	}
	nw.addPairsTo(h.right, h.linkAddr(0, 2), h.left, linkName(0))
	listen := anyAddr
	if h.ipv6 {
		listen = netip.IPv6Unspecified()
	}
	for i := range nw.Pairs { // a subflow's address needs a listener, too
		nw.Pairs[i].Listen = endpoint(listen, i)
	}
	return nil
}

// signal adds an MPTCP endpoint for each link but the first, until the kernel refuses.
// It returns how many links are used.
func (h linkedHosts) signal() (int, error) {
	for i := 1; i < h.spec.Links; i++ {
		err := link.AddMPTCPEndpoint(h.right.NS, link.MPTCPEndpoint{Addr: h.linkAddr(i, 2), ID: i, Signal: true, Device: linkName(i)})
		if err != nil && i > maxMPTCP {
			return i, nil // only its refusal shows a kernel's own limit on endpoints
		}
		if err != nil {
			return i, err
		}
	}
	return h.spec.Links, nil
}

// Device and addresses of a tunnel over the links. The addresses are indexed by side.
const tunnelDevice = "mp0"

var tunnelAddrs = [...]netip.Prefix{1: netip.MustParsePrefix("198.18.250.1/30"), 2: netip.MustParsePrefix("198.18.250.2/30")}

// addTunnelledPairs makes the pairs of a tunnel as soon as the tunnel carries
// connections. The programs given make the tunnel.
func (nw *Network) addTunnelledPairs(h linkedHosts, programs []lab.Proc) error {
	server := tunnelAddrs[2].Addr()
	if err := nw.awaitPath(h, endpoint(server, 0), programs); err != nil {
		return err
	}
	nw.addPairsTo(h.right, server, h.left, tunnelDevice)
	if c, ok := h.spec.Case(); ok { // it would be up for long elsewhere
		sleepUntil(nw.ctx, time.Now().Add(time.Second+4*c.Longest()))
	}
	return nil
}

// deadFor is how long a program must look dead before it counts as ended: while a
// container starts, processes end that are not the program.
const deadFor = 400 * time.Millisecond

var errProgramEnded = errors.New("its program has ended")

// pollRunning is poll, which it ends with errProgramEnded when one of the programs ends.
func (nw *Network) pollRunning(programs []lab.Proc, ready func() error) error {
	ctx, cancel := context.WithCancelCause(nw.ctx)
	defer cancel(nil)
	lastAlive := time.Now()
	err := poll(ctx, func() error {
		if !slices.ContainsFunc(programs, hasEnded) {
			lastAlive = time.Now()
		}
		if time.Since(lastAlive) > deadFor {
			cancel(errProgramEnded)
		}
		return ready()
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// awaitPath waits until a connection from left to an address of right succeeds.
func (nw *Network) awaitPath(h linkedHosts, at netip.AddrPort, programs []lab.Proc) error {
	var listener net.Listener
	if err := nw.pollRunning(programs, func() (err error) {
		listener, err = listenIn(nw.ctx, h.right.NS, at)
		return err
	}); err != nil {
		return fmt.Errorf("wait for the tunnel's address: %w", err)
	}
	defer listener.Close()
	if err := nw.pollRunning(programs, func() error { return dialIn(nw.ctx, h.left.NS, at, time.Second) }); err != nil {
		return fmt.Errorf("connect to %s through the tunnel: %w", at, err)
	}
	return nil
}

// hasEnded reports whether a program is a zombie that nothing has waited for. For a
// moment, a program whose other thread calls execve looks like one, but it has more than
// one thread.
func hasEnded(p lab.Proc) bool {
	const state, threads = 3, 20
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return false
	}
	stat, _ := procstat.Parse(text)
	return stat.Field(state) == "Z" && stat.Field(threads) == "1"
}
