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
	// nat64Name has no IPv6 addresses of its own. A resolver beside a NAT64 synthesizes
	// some from its IPv4 addresses, 192.0.0.170 and 192.0.0.171 (RFC 7050 section 8).
	nat64Name = "ipv4only.arpa"
	// maxAgainNAT64 is the time within which a machine that moves to another network
	// learns that network's prefixes. The name's TTL is a day.
	maxAgainNAT64 = time.Minute
	// maxNAT64 is the number of discovered prefixes that are kept, latest first. Networks
	// have one or two.
	maxNAT64 = 16
	// maxNAT64Stated is the number of prefixes that rules may state.
	maxNAT64Stated = 64
)

// nat64 discovers the network's NAT64 prefixes from its resolver (RFC 7050). It is safe
// for concurrent use; reading now takes no lock.
//
// Discovery does not delay the start of the command. Until the first answer, a flow to an
// IPv6 address is judged as if the network had a prefix of each length at that address.
// Few addresses contain a denied IPv4 address then. Flows to those wait: their packets
// are dropped until the answer arrives, so the guest's kernel sends them again and they
// are judged anew. Once a look-up has failed they are refused, because the prefix is
// still unknown, and look-ups continue. If a server answers with an error (SERVFAIL,
// REFUSED), that counts as "no NAT64": a resolver beside a NAT64 answers this name itself
// (RFC 8880 section 7.2), while the resolver of a closed network may refuse it for ever.
type nat64 struct {
	own *own // what we know about nat64Name
	now atomic.Pointer[announcement]
}

// announcement is what the network's resolver announced about NAT64.
type announcement struct {
	prefixes []netip.Prefix
	answered bool // at least once
	failed   bool // the last look-up was not answered
}

// answeredError is implemented by errors of a Lookup that are a server's answer.
type answeredError interface{ Answered() bool }

func newNAT64() *nat64 {
	n := &nat64{own: newOwn(maxAgainNAT64)}
	n.own.published = n.publish
	n.own.publish()
	return n
}

// want starts the discovery, or stops it and discards its results.
func (n *nat64) want(yes bool) {
	if yes {
		n.own.set([]string{nat64Name})
	} else {
		n.own.set(nil)
	}
}

// publish stores the prefixes of the addresses that nat64Name has, or had during the last
// hour, latest first.
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

// announced returns the prefixes that an address of nat64Name announces: those of the
// lengths at which the address contains a well-known IPv4 address (RFC 7050 section 3).
func announced(a netip.Addr) (all []netip.Prefix) {
	if !a.Is6() {
		return nil
	}
	for _, l := range nat64Lengths {
		switch extract(a.As16(), l.at) {
		case netip.AddrFrom4([4]byte{192, 0, 0, 170}), netip.AddrFrom4([4]byte{192, 0, 0, 171}):
			p, _ := a.Prefix(l.bits) // no error: all lengths are valid for IPv6
			all = append(all, p)
		}
	}
	return all
}

// ParseNAT64 parses a prefix for Rules.NAT64.
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
