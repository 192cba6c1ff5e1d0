package spec

import (
	"fmt"
	"net/netip"
	"slices"
)

func (c *checker) checkTogether() {
	names := map[string]int{}
	for i, p := range c.t.Paths {
		at := pathKey(i)
		if first, used := names[p.Name]; !used {
			names[p.Name] = i
		} else if !c.doc.Wrong(at + ".name") {
			c.duplicateName(at, p.Name, first)
		}
		c.checkAgainst(at, p, c.t.Paths[:i])
	}
	if len(c.t.Paths) > 0 && !slices.ContainsFunc(c.t.Paths, func(p Path) bool { return !p.Down }) {
		c.warn("$.paths", "all paths are down: no packets get through")
	}
}

// checkAgainst checks a path against the tunnel and the paths before it.
func (c *checker) checkAgainst(at string, p Path, before []Path) {
	if p.Device != "" && p.Device == c.t.Device {
		c.fail(at+".device", "%s uses the tunnel's own device %s", pathTitle(p.Name), p.Device)
	}
	if j := slices.IndexFunc(before, func(q Path) bool { return indistinguishable(p, q) }); j >= 0 {
		c.fail(at, "%s duplicates %s: both go from %s to %s", pathTitle(p.Name), pathTitle(before[j].Name), localEnd(p), p.Remote).Hint =
			"they must differ in device, local, remote or a port"
	}
	c.checkLoop(at, p)
}

func (c *checker) duplicateName(at, name string, first int) {
	line := c.doc.Place(pathKey(first)).Line
	e := c.fail(at+".name", "path name %q is already used on line %d", name, line)
	if c.isMissing(at + ".name") {
		e.Hint = "add a name: the default is the name of the device"
	}
}

// indistinguishable reports whether the other end, or possibly this one, could not
// distinguish two paths: the addresses and ports of both are the same.
func indistinguishable(p, q Path) bool {
	if !p.Remote.IsValid() || p.Remote != q.Remote || p.LocalPort != q.LocalPort {
		return false
	}
	if p.Local.IsValid() && q.Local.IsValid() {
		return p.Local == q.Local
	}
	return p.Device != "" && p.Device == q.Device
}

func localEnd(p Path) string {
	if p.Local.IsValid() {
		return netip.AddrPortFrom(p.Local, p.LocalPort).String()
	}
	return fmt.Sprintf("%s, port %d", p.Device, p.LocalPort)
}

// checkLoop checks that the tunnel's own packets don't go into the tunnel. Those of a
// socket that is bound to a device don't: the kernel skips routes by other devices
// (fib_table_lookup, net/ipv4/fib_trie.c; RT6_LOOKUP_F_IFACE, net/ipv6/route.c). So a
// default route may cover such a path's remote; a more specific route is considered a
// mistake.
func (c *checker) checkLoop(at string, p Path) {
	for _, a := range c.t.Addresses {
		switch {
		case a.Addr() == p.Remote.Addr() || a.Addr() == p.Local:
			c.fail(at, "%s uses the tunnel's inner address %s as an outer address", pathTitle(p.Name), a.Addr())
		case a.Contains(p.Remote.Addr()):
			c.failLoop(at, p, "address", a)
		}
	}
	for _, r := range c.t.Routes {
		if !r.Contains(p.Remote.Addr()) || isDefaultRoute(r) && p.Device != "" {
			continue
		}
		if e := c.failLoop(at, p, "route", r); isDefaultRoute(r) {
			e.Hint = "bind the path to its outgoing device, e.g. `device: eth0`"
		}
	}
}

// Routed returns the network of the tunnel that an outer address lies within, or the zero
// Prefix: packets from a path, which may be bound to a device, to the address would go into
// the tunnel.
func (t *Tunnel) Routed(device string, outer netip.Addr) netip.Prefix {
	for _, a := range t.Addresses {
		if a.Contains(outer) {
			return a.Masked()
		}
	}
	for _, r := range t.Routes {
		if r.Contains(outer) && (device == "" || !isDefaultRoute(r)) {
			return r
		}
	}
	return netip.Prefix{}
}

// isDefaultRoute reports whether a route is a default route, or one of the two halves
// that take precedence over an existing default route.
func isDefaultRoute(r netip.Prefix) bool { return r.Bits() <= 1 }

func (c *checker) failLoop(at string, p Path, setting string, by netip.Prefix) *Finding {
	return c.fail(at+".remote", "remote %s of %s lies within the tunnel's %s %s: the tunnel's own packets would go into the tunnel",
		p.Remote.Addr(), pathTitle(p.Name), setting, by)
}
