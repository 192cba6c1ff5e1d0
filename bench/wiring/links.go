package wiring

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"cleat/bench/multipath"
	"cleat/lab"
	"cleat/link"

	"github.com/google/nftables"
)

type linkedHosts struct {
	left, right *lab.Node // clients are on the left, servers on the right
	spec        multipath.Spec
	ipv6        bool // of the links' addresses
}

func linkName(i int) string { return "l" + strconv.Itoa(i+1) }

// linkAddr is the address of link i on a side, 1 or 2.
func (h linkedHosts) linkAddr(i, side int) netip.Addr {
	if h.ipv6 { // RFC 5180's range for benchmarks
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x00, 0x02, 7: byte(i + 1), 15: byte(side)})
	}
	return netip.AddrFrom4([4]byte{198, 18, byte(100 + i), byte(side)})
}

// sides returns both hosts by their side, 1 (left) or 2 (right).
func (h linkedHosts) sides() map[int]*lab.Node { return map[int]*lab.Node{1: h.left, 2: h.right} }

// linkHosts makes two hosts and the links between them: cables, or, where a link is to
// delay or lose packets, pairs of TAP devices that a relay joins.
func (nw *Network) linkHosts() (linkedHosts, error) {
	h := linkedHosts{spec: nw.cfg.Multipath(), ipv6: nw.cfg.IPv6}
	err := h.spec.Validate()
	if err != nil {
		return h, &link.ParamError{Kind: "links", Param: "spec", Value: err.Error(), Allowed: "what package multipath allows"}
	}
	if h.left, err = nw.node("left"); err != nil {
		return h, err
	}
	if h.right, err = nw.node("right"); err != nil {
		return h, err
	}
	if err := nw.setCongestion(h.left, h.right); err != nil {
		return h, err
	}
	zoo, isZoo := h.spec.Case()
	if h.spec.Variant == multipath.Delays || isZoo {
		if err := nw.raiseTCPBuffers(h); err != nil {
			return h, err
		}
	}
	links := h.spec.Plan()
	switch {
	case isZoo:
		err = nw.zooLinks(h, zoo)
	case h.spec.Variant == multipath.Delays || h.spec.Variant == multipath.Loss:
		err = nw.relayLinks(h, links)
	default:
		err = nw.cableLinks(h, links)
	}
	if err != nil {
		return h, err
	}
	for i := range links {
		for side, n := range h.sides() {
			if err := h.address(n, i, side); err != nil {
				return h, err
			}
		}
		if err := h.addNeighbors(i); err != nil {
			return h, err
		}
	}
	if isZoo {
		nw.addCompetitors(h, zoo)
		return h, nil
	}
	nw.play = h.play
	return h, nil
}

// maxTCPBuffer is four times the bandwidth-delay product of twelve links of 100 Mbit/s
// with a round trip of 100 ms, which leaves room for the kernel's own bookkeeping.
const maxTCPBuffer = "67108864" // bytes

// raiseTCPBuffers lets TCP's buffers grow beyond the kernel's default of 4 MiB for
// sending. With long delays that limit would be measured instead of the links.
func (nw *Network) raiseTCPBuffers(h linkedHosts) error {
	nw.Notes = append(nw.Notes, "TCP's buffers may grow to 64 MiB (tcp_rmem, tcp_wmem)")
	for _, n := range h.sides() {
		for name, minAndDefault := range map[string]string{"tcp_rmem": "4096 131072 ", "tcp_wmem": "4096 16384 "} {
			if err := n.Sysctl("net/ipv4/"+name, minAndDefault+maxTCPBuffer); err != nil {
				return err
			}
		}
	}
	return nil
}

// address gives link i its address on one side.
func (h linkedHosts) address(n *lab.Node, i, side int) error {
	if !h.ipv6 {
		return n.Address(linkName(i), netip.PrefixFrom(h.linkAddr(i, side), 30))
	}
	// Unlike IPv4's, the address would be removed when the link goes down.
	if err := n.Sysctl("net/ipv6/conf/"+linkName(i)+"/keep_addr_on_down", "1"); err != nil {
		return err
	}
	return n.Address(linkName(i), netip.PrefixFrom(h.linkAddr(i, side), 64))
}

// addNeighbors adds the neighbour entries of both ends of link i. A measurement would
// begin with their resolution otherwise, which takes at least a round trip, and a second
// where a request is lost.
func (h linkedHosts) addNeighbors(i int) error {
	for side, n := range h.sides() {
		mac, err := hardwareAddr(h.sides()[3-side], linkName(i))
		if err != nil {
			return err
		}
		if err := onLink(n, linkName(i), func(l *link.Link) error { return l.AddNeighbor(h.linkAddr(i, 3-side), mac) }); err != nil {
			return err
		}
	}
	return nil
}

func hardwareAddr(n *lab.Node, name string) (mac link.MAC, err error) {
	err = n.NS.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("find link %q on %s: %w", name, n, err)
		}
		mac = link.MAC(i.HardwareAddr)
		return nil
	})
	return mac, err
}

func (nw *Network) cableLinks(h linkedHosts, links []multipath.Link) error {
	for i, l := range links {
		name := linkName(i)
		cable := lab.Cable{MTU: nw.cfg.MTU, RateBitsPerSec: int64(l.RateBitsPerSec)}
		if err := lab.Connect(lab.End{Node: h.left, Name: name}, lab.End{Node: h.right, Name: name}, cable); err != nil {
			return err
		}
	}
	return nil
}

const mostLossSeed = 1 << 53 // every JSON reader holds what is below exactly (RFC 8259 section 6)

// relayLinks makes each link two TAP devices, and starts one relay for all of them on a
// node in the middle.
func (nw *Network) relayLinks(h linkedHosts, links []multipath.Link) error {
	middle, err := nw.node("middle")
	if err != nil {
		return err
	}
	var tuns []*link.Tun
	var delays, losses []string
	for i, l := range links {
		for _, n := range []*lab.Node{h.left, h.right} {
			// A lossy link gets packets of the MTU's size, each of which may be lost alone.
			t, err := nw.openTun(n, linkName(i), link.TunEthernet, l.LossShare == 0)
			if err != nil {
				return err
			}
			tuns = append(tuns, t)
			if l.RateBitsPerSec > 0 {
				if err := link.Shape(t.Link(), link.Shaping{RateBitsPerSec: int64(l.RateBitsPerSec)}); err != nil {
					return err
				}
			}
		}
		delays = append(delays, l.Delay.String())
		losses = append(losses, strconv.FormatFloat(l.LossShare, 'g', -1, 64))
	}
	nw.LossSeed = max(1, rand.Uint64N(mostLossSeed))
	return nw.startRelay(middle, tuns, "--pairs", strconv.Itoa(len(links)), "--delay", strings.Join(delays, ","),
		"--loss", strings.Join(losses, ","), "--seed", strconv.FormatUint(nw.LossSeed, 10))
}

// play applies the events of the variant.
func (h linkedHosts) play(ctx context.Context, from time.Time, whole time.Duration) error {
	for _, e := range h.spec.Events(whole) {
		if !sleepUntil(ctx, from.Add(e.From)) {
			return nil
		}
		if e.Silent {
			return h.blackhole(e.Link)
		}
		// With the left end of a cable down, the right one has no carrier.
		if err := onLink(h.left, linkName(e.Link), (*link.Link).Down); err != nil {
			return err
		}
		if !sleepUntil(ctx, from.Add(e.To)) {
			return nil
		}
		if err := onLink(h.left, linkName(e.Link), (*link.Link).Up); err != nil {
			return err
		}
		if err := h.addNeighbors(e.Link); err != nil { // they were flushed with the link
			return err
		}
	}
	return nil
}

// sleepUntil reports whether the instant came before ctx ended.
func sleepUntil(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// blackhole makes both ends of a link drop all packets on ingress, before anything else
// handles them. A drop on egress would be an error of the sender (EPERM).
func (h linkedHosts) blackhole(i int) error {
	for _, n := range h.sides() {
		if err := dropIngress(n, linkName(i)); err != nil {
			return fmt.Errorf("blackhole link %d on %s: %w", i+1, n, err)
		}
	}
	return nil
}

func dropIngress(n *lab.Node, device string) error {
	conn, err := nftables.New(nftables.WithNetNSFd(n.NS.Fd()))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	drop := nftables.ChainPolicyDrop
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyNetdev, Name: "blackhole"})
	conn.AddChain(&nftables.Chain{Name: device, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookIngress, Priority: nftables.ChainPriorityFilter, Device: device, Policy: &drop})
	return conn.Flush()
}
