package spec

import (
	"fmt"
	"net/netip"
	"slices"
)

// checkInner checks addresses and routes of the device, and its MTU.
func (c *checker) checkInner() {
	if c.missing("$.address") || c.findings.given("$.address") && len(c.given.Address) == 0 {
		c.wrong("$.address", "a list of addresses with prefix, e.g. [10.9.0.1/30]", "address is missing")
	}
	for i, text := range c.given.Address {
		path := childAt("$.address", i)
		if p, ok := c.address(path, text); ok {
			c.t.Addresses = append(c.t.Addresses, p)
		}
	}
	for i, text := range c.given.Routes {
		path := childAt("$.routes", i)
		if p, ok := c.network(path, "route", text, c.t.Routes); ok {
			c.t.Routes = append(c.t.Routes, p)
		}
	}
	for i, text := range c.given.Sources {
		path := childAt("$.sources", i)
		if p, ok := c.network(path, "source", text, c.t.Sources); ok {
			c.t.Sources = append(c.t.Sources, p)
		}
	}
	least := minMTU4
	if c.t.Inner6() {
		least = minMTU6
	}
	c.t.MTUBytes = c.mtu("$.mtu", c.given.MTU, least)
}

// prefix reads an address with its prefix.
func (c *checker) prefix(path, what, text, example string) (netip.Prefix, bool) {
	if !c.findings.given(path) {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(text)
	if err == nil && !p.Addr().Is4In6() {
		return p, true
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		example = fmt.Sprintf("%s/%d", a, a.BitLen())
	}
	c.wrong(path, "an address with a prefix, e.g. "+example, "%s %q", what, text)
	return netip.Prefix{}, false
}

// address checks an inner address.
func (c *checker) address(path, text string) (netip.Prefix, bool) {
	p, ok := c.prefix(path, "address", text, "10.9.0.1/30")
	if !ok {
		return p, false
	}
	a, network := p.Addr(), p.Masked()
	switch {
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a == broadcast:
		c.wrong(path, "an address of one host's", "address %s", a)
	case p.Bits() == 0:
		c.wrong(path, "a prefix of 1 or more", "address %s", p)
	case p.Bits() < a.BitLen()-1 && a == network.Addr():
		c.wrong(path, fmt.Sprintf("one within it, e.g. %s/%d", a.Next(), p.Bits()), "address %s is that of the network itself", p)
	case a.Is4() && p.Bits() < 31 && a == lastOf(network):
		c.wrong(path, fmt.Sprintf("one within it, e.g. %s/%d", a.Prev(), p.Bits()), "address %s is the network's broadcast address", p)
	case slices.ContainsFunc(c.t.Addresses, func(other netip.Prefix) bool { return other.Addr() == a }):
		c.refuse(path, "address %s is given twice", a)
	default:
		return p, true
	}
	return p, false
}

// broadcast is the limited broadcast address (RFC 919).
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// lastOf is the last address of an IPv4 prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// network checks a network of the list before: what is reached through the tunnel, or may
// send through it.
func (c *checker) network(path, what, text string, before []netip.Prefix) (netip.Prefix, bool) {
	p, ok := c.prefix(path, what, text, "10.20.0.0/16")
	switch {
	case !ok:
	case p != p.Masked():
		c.wrong(path, p.Masked().String(), "%s %s has bits behind its prefix", what, p)
	case p.Addr().IsMulticast():
		c.wrong(path, "addresses of hosts", "%s %s", what, p)
	case slices.Contains(before, p):
		c.refuse(path, "%s %s is given twice", what, p)
	default:
		return p, true
	}
	return p, false
}
