package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// nat64Name has no IPv6 addresses but those that a resolver next to a NAT64 makes
	// of its IPv4 addresses, 192.0.0.170 and 192.0.0.171 (RFC 7050 section 8).
	nat64Name = "ipv4only.arpa"
	// A machine that moves to another network is judged by that network's prefixes a
	// minute later. The name's TTL is a day.
	maxAgainNAT64 = time.Minute
	// More prefixes are not known at a time, the latest ones; networks have one or two.
	maxNAT64 = 16
	// So many can be stated by rules.
	maxNAT64Stated = 64
)

// nat64 discovers the NAT64 prefixes of the network from its resolver (RFC 7050). Safe for
// concurrent use; reading now takes no lock.
//
// Discovery does not delay the start of the command. Until the first answer, a flow to an
// IPv6 address is judged as if the network had a prefix of each length there. Hardly any
// address holds a denied IPv4 address then; flows to the others wait: their packets are
// dropped until the answer is there, so the guest's kernel sends them again and they are
// judged anew. Once a look-up has failed they are refused, since the prefix is still
// unknown, and look-ups go on. An error by which a server answers (SERVFAIL, REFUSED)
// counts as "no NAT64": a resolver next to a NAT64 answers this name itself (RFC 8880
// section 7.2), while a resolver of a closed network may refuse it forever.
type nat64 struct {
	own *own // what is known of nat64Name
	now atomic.Pointer[announcement]
}

// announcement is what the network's resolver said about NAT64.
type announcement struct {
	prefixes []netip.Prefix
	answered bool // at least once
	failed   bool // the last look-up was not answered
}

// answeredError is implemented by errors of a Lookup that say what a server answered.
type answeredError interface{ Answered() bool }

func newNAT64() *nat64 {
	n := &nat64{own: newOwn(maxAgainNAT64)}
	n.own.published = n.publish
	n.own.publish()
	return n
}

// want starts the discovery, or ends it and forgets what it found.
func (n *nat64) want(yes bool) {
	if yes {
		n.own.set([]string{nat64Name})
	} else {
		n.own.set(nil)
	}
}

// publish makes the prefixes of the addresses that nat64Name has, or had during the
// last hour: the latest first.
func (n *nat64) publish(entries map[string]*ownName) {
	e := entries[nat64Name]
	if e == nil {
		n.now.Store(&announcement{})
		return
	}
	addrs := e.addrs
	latest := slices.SortedFunc(maps.Keys(addrs), func(a, b netip.Addr) int {
		return cmp.Or(addrs[b].Compare(addrs[a]), a.Compare(b))
	})
	var all []netip.Prefix
	for _, a := range latest {
		for _, p := range announced(a) {
			if len(all) < maxNAT64 && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	var answer answeredError
	none := errors.As(e.err, &answer) && answer.Answered()
	old := n.now.Load()
	n.now.Store(&announcement{all, old.answered || none || !e.due.IsZero() && e.err == nil, e.err != nil})
}

// announced returns the prefixes that an address of nat64Name stands for: those of
// the lengths with which it holds a well-known IPv4 address (RFC 7050 section 3).
func announced(a netip.Addr) (all []netip.Prefix) {
	if !a.Is6() {
		return nil
	}
	for _, l := range nat64Lengths {
		switch extract(a.As16(), l.at) {
		case netip.AddrFrom4([4]byte{192, 0, 0, 170}), netip.AddrFrom4([4]byte{192, 0, 0, 171}):
			p, _ := a.Prefix(l.bits) // no error: the length is one of IPv6
			all = append(all, p)
		}
	}
	return all
}

// NAT64 returns the prefixes that lead to IPv4 addresses behind a translator of the
// network (RFC 6052): those that rules state, and those that the network's resolver
// announced lately.
func (p *Policy) NAT64() []netip.Prefix {
	return slices.Concat(p.state.Load().src.NAT64, p.nat64.now.Load().prefixes)
}

// ParseNAT64 reads a prefix for Rules.NAT64.
func ParseNAT64(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("read nat64: %q: want a prefix like 64:ff9b:1::/96", s)
	}
	return p, checkNAT64(p)
}

func checkNAT64(p netip.Prefix) error {
	lengths := make([]int, 0, len(nat64Lengths))
	for _, l := range nat64Lengths {
		lengths = append(lengths, l.bits)
	}
	switch {
	case !p.Addr().Is6() || p.Addr().Is4In6() || !slices.Contains(lengths, p.Bits()):
		return fmt.Errorf("read nat64: %q: want an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits", p)
	case p != p.Masked():
		return fmt.Errorf("read nat64: %q: want %s", p, p.Masked())
	}
	return nil
}
