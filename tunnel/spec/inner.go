package spec

import (
	"fmt"
	"net/netip"
	"slices"
)

func (c *checker) checkInner() {
	if c.isMissing("$.address") || c.isSet("$.address") && len(c.raw.Address) == 0 {
		c.reject("$.address", "a list of addresses with prefix, e.g. [10.9.0.1/30]", "address is missing")
	}
	for i, text := range c.raw.Address {
		path := elementKey("$.address", i)
		if p, ok := c.parseAddress(path, text); ok {
			c.t.Addresses = append(c.t.Addresses, p)
		}
	}
	for i, text := range c.raw.Routes {
		path := elementKey("$.routes", i)
		if p, ok := c.parseNetwork(path, "route", text, c.t.Routes); ok {
			c.t.Routes = append(c.t.Routes, p)
		}
	}
	for i, text := range c.raw.Sources {
		path := elementKey("$.sources", i)
		if p, ok := c.parseNetwork(path, "source", text, c.t.Sources); ok {
			c.t.Sources = append(c.t.Sources, p)
		}
	}
	c.t.MTUBytes = c.checkMTU("$.mtu", c.raw.MTU, c.t.Inner6())
}

func (c *checker) parsePrefix(path, setting, text, example string) (netip.Prefix, bool) {
	if !c.isSet(path) {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(text)
	if err == nil && !p.Addr().Is4In6() {
		return p, true
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		example = fmt.Sprintf("%s/%d", a, a.BitLen())
	}
	c.reject(path, "an address with a prefix, e.g. "+example, "%s %q", setting, text)
	return netip.Prefix{}, false
}

func (c *checker) parseAddress(path, text string) (netip.Prefix, bool) {
	p, ok := c.parsePrefix(path, "address", text, "10.9.0.1/30")
	if !ok {
		return p, false
	}
	a, network := p.Addr(), p.Masked()
	switch {
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a == broadcast:
		c.reject(path, "a unicast address", "address %s", a)
	case p.Bits() == 0:
		c.reject(path, "a prefix length of 1 or more", "address %s", p)
	case p.Bits() < a.BitLen()-1 && a == network.Addr():
		c.reject(path, fmt.Sprintf("a host's address in it, e.g. %s/%d", a.Next(), p.Bits()), "address %s is the network's own address", p)
	case a.Is4() && p.Bits() < 31 && a == lastAddr(network):
		c.reject(path, fmt.Sprintf("a host's address in it, e.g. %s/%d", a.Prev(), p.Bits()), "address %s is the network's broadcast address", p)
	case slices.ContainsFunc(c.t.Addresses, func(other netip.Prefix) bool { return other.Addr() == a }):
		c.fail(path, "address %s is listed twice", a)
	default:
		return p, true
	}
	return p, false
}

// broadcast is the limited broadcast address (RFC 919).
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// lastAddr returns the last address of an IPv4 prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// parseNetwork parses and checks a route or source. accepted are those before it.
func (c *checker) parseNetwork(path, setting, text string, accepted []netip.Prefix) (netip.Prefix, bool) {
	p, ok := c.parsePrefix(path, setting, text, "10.20.0.0/16")
	switch {
	case !ok:
	case p != p.Masked():
		c.reject(path, p.Masked().String(), "%s %s has host bits set", setting, p)
	case p.Addr().IsMulticast():
		c.reject(path, "unicast addresses", "%s %s", setting, p)
	case slices.Contains(accepted, p):
		c.fail(path, "%s %s is listed twice", setting, p)
	default:
		return p, true
	}
	return p, false
}
