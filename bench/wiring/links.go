package wiring

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"cleat/bench/multipath"
	"cleat/lab"
	"cleat/link"

	"github.com/google/nftables"
)

// parallel is two hosts that several links join.
type parallel struct {
	left, right *lab.Node // clients are left, servers right
	spec        multipath.Spec
	ipv6        bool
}

func linkName(i int) string { return "l" + strconv.Itoa(i+1) }

// linkAddr is the address of a side, 1 or 2, of link i.
func (p parallel) linkAddr(i, side int) netip.Addr {
	if p.ipv6 { // RFC 5180's range for benchmarks
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x00, 0x02, 7: byte(i + 1), 15: byte(side)})
	}
	return netip.AddrFrom4([4]byte{198, 18, byte(100 + i), byte(side)})
}

func (p parallel) linkNet(i, side int) netip.Prefix {
	if p.ipv6 {
		return netip.PrefixFrom(p.linkAddr(i, side), 64)
	}
	return netip.PrefixFrom(p.linkAddr(i, side), 30)
}

// sides are both hosts with their numbers in addresses.
func (p parallel) sides() map[int]*lab.Node { return map[int]*lab.Node{1: p.left, 2: p.right} }

// parallel makes two hosts and the links between them, as the factors say:
// cables, or, where a link is to delay or to lose, pairs of TAP devices that a
// relay joins.
func (nw *Network) parallel() (parallel, error) {
	p := parallel{ipv6: nw.cfg.IPv6, spec: nw.cfg.Multipath()}
	err := p.spec.Validate()
	if err != nil {
		return p, &link.ParamError{Kind: "links", Param: "spec", Value: err.Error(), Allowed: "what package multipath allows"}
	}
	if p.left, err = nw.node("left"); err != nil {
		return p, err
	}
	if p.right, err = nw.node("right"); err != nil {
		return p, err
	}
	if err := nw.setCongestion(p.left, p.right); err != nil {
		return p, err
	}
	if p.spec.Variant == multipath.Delays {
		if err := nw.wideWindows(p); err != nil {
			return p, err
		}
	}
	plan := p.spec.Plan()
	if p.spec.Variant == multipath.Delays || p.spec.Variant == multipath.Loss {
		err = nw.slowLinks(p, plan)
	} else {
		err = nw.cables(p, plan)
	}
	if err != nil {
		return p, err
	}
	for i := range plan {
		for side, n := range p.sides() {
			if err := p.address(n, i, side); err != nil {
				return p, err
			}
		}
		if err := p.introduce(i); err != nil {
			return p, err
		}
	}
	nw.play = p.play
	return p, nil
}

// windowBytes lets TCP have twelve links of 100 Mbit/s times a round trip of 100 ms on its
// way, with the kernel's own bookkeeping: four times the product.
const windowBytes = "67108864"

// wideWindows lets TCP's buffers grow beyond the kernel's default of 4 MiB for what is sent,
// which long delays would measure instead of the links.
func (nw *Network) wideWindows(p parallel) error {
	nw.Notes = append(nw.Notes, "TCP's buffers may grow to 64 MiB (tcp_rmem, tcp_wmem)")
	for _, n := range []*lab.Node{p.left, p.right} {
		for name, least := range map[string]string{"tcp_rmem": "4096 131072 ", "tcp_wmem": "4096 16384 "} {
			if err := n.Sysctl("net/ipv4/"+name, least+windowBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// address gives a link its address on one side.
func (p parallel) address(n *lab.Node, i, side int) error {
	if p.ipv6 {
		// Else the address would go when the link goes down, unlike IPv4's.
		if err := n.Sysctl("net/ipv6/conf/"+linkName(i)+"/keep_addr_on_down", "1"); err != nil {
			return err
		}
	}
	return n.Address(linkName(i), p.linkNet(i, side))
}

// introduce makes the ends of a link know each other's hardware addresses. Asking
// for them takes a second where a question is lost, and a round trip at least: a
// measurement would begin with that.
func (p parallel) introduce(i int) error {
	for side, n := range p.sides() {
		mac, err := hardwareAddress(p.sides()[3-side], linkName(i))
		if err != nil {
			return err
		}
		l, err := link.Find(n.NS, linkName(i))
		if err != nil {
			return err
		}
		if err := l.AddNeighbor(p.linkAddr(i, 3-side), mac); err != nil {
			return err
		}
	}
	return nil
}

func hardwareAddress(n *lab.Node, name string) (link.MAC, error) {
	h, err := link.Handle(n.NS)
	if err != nil {
		return link.MAC{}, err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return link.MAC{}, fmt.Errorf("find link %q on %s: %w", name, n, err)
	}
	return link.MAC(l.Attrs().HardwareAddr), nil
}

// cables lays a veth pair for each link.
func (nw *Network) cables(p parallel, plan []multipath.Link) error {
	for i, l := range plan {
		name := linkName(i)
		cable := lab.Cable{MTU: nw.cfg.MTU, RateBitsPerSec: int64(l.RateBitsPerSec)}
		if err := lab.Connect(lab.End{Node: p.left, Name: name}, lab.End{Node: p.right, Name: name}, cable); err != nil {
			return err
		}
	}
	return nil
}

// slowLinks makes TAP devices and starts one relay for all of them, on a host of
// its own in the middle.
//
// A link that only delays lets the kernel's super-packets cross whole, as a
// cable does. One that loses takes packets of the MTU's size, so that each has
// its own chance.
func (nw *Network) slowLinks(p parallel, plan []multipath.Link) error {
	middle, err := nw.node("middle")
	if err != nil {
		return err
	}
	var files []*os.File
	var delays, losses []string
	for i, l := range plan {
		for _, n := range []*lab.Node{p.left, p.right} {
			t, err := nw.slowEnd(n, linkName(i), l)
			if err != nil {
				return err
			}
			for _, f := range t.Files() {
				defer f.Close() // the relay has a copy
			}
			files = append(files, t.Files()...)
		}
		delays = append(delays, l.Delay.String())
		losses = append(losses, strconv.FormatFloat(l.LossShare, 'g', -1, 64))
	}
	return nw.start(middle, lab.Command{Args: []string{lab.Self, "traffic", "relay", "--pairs", strconv.Itoa(len(plan)),
		"--delay", strings.Join(delays, ","), "--loss", strings.Join(losses, ","), "--seed", strconv.FormatUint(rand.Uint64(), 10)}, Extra: files})
}

func (nw *Network) slowEnd(n *lab.Node, name string, l multipath.Link) (*link.Tun, error) {
	t, err := link.OpenTun(n.NS, link.TunSpec{Attrs: link.Attrs{Name: name, MTU: nw.cfg.MTU}, Mode: link.TunEthernet, VNetHdr: true})
	if err != nil {
		return nil, err
	}
	if l.LossShare == 0 {
		if err := t.OffloadAll(); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	if l.RateBitsPerSec > 0 {
		if err := link.Shape(t.Link(), link.Shaping{RateBitsPerSec: int64(l.RateBitsPerSec)}); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// play lets the events of the variant happen.
func (p parallel) play(ctx context.Context, from time.Time, whole time.Duration) error {
	for _, e := range p.spec.Events(whole) {
		if !sleepTo(ctx, from.Add(e.From)) {
			return nil
		}
		if e.Silent {
			return p.blackhole(e.Link)
		}
		if err := p.setLink(e.Link, (*link.Link).Down); err != nil {
			return err
		}
		if !sleepTo(ctx, from.Add(e.To)) {
			return nil
		}
		if err := p.setLink(e.Link, (*link.Link).Up); err != nil {
			return err
		}
		if err := p.introduce(e.Link); err != nil { // what it knew went with it
			return err
		}
	}
	return nil
}

// sleepTo tells whether the moment has come, and not ctx ended.
func sleepTo(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// setLink does something to the left end of a link: of a cable, the other end
// loses its carrier.
func (p parallel) setLink(i int, do func(*link.Link) error) error {
	l, err := link.Find(p.left.NS, linkName(i))
	if err != nil {
		return err
	}
	return do(l)
}

// blackhole makes both ends of a link drop what arrives, before anything sees
// it. Dropped on the way out, it would be an error of the sender's (EPERM).
func (p parallel) blackhole(i int) error {
	for _, n := range []*lab.Node{p.left, p.right} {
		if err := dropIngress(n, linkName(i)); err != nil {
			return fmt.Errorf("blackhole link %d on %s: %w", i+1, n, err)
		}
	}
	return nil
}

// holeTable is the nftables table of a black hole.
const holeTable = "hole"

func dropIngress(n *lab.Node, device string) error {
	conn, err := nftables.New(nftables.WithNetNSFd(n.NS.Fd()))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	drop := nftables.ChainPolicyDrop
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyNetdev, Name: holeTable})
	conn.AddChain(&nftables.Chain{Name: device, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookIngress, Priority: nftables.ChainPriorityFilter, Device: device, Policy: &drop})
	return conn.Flush()
}
