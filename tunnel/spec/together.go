package spec

import (
	"fmt"
	"net/netip"
	"slices"
)

// checkTogether checks what can't be told of one value alone.
func (c *checker) checkTogether() {
	names := map[string]int{}
	for i, p := range c.t.Paths {
		at := pathAt(i)
		if first, used := names[p.Name]; !used {
			names[p.Name] = i
		} else if !c.doc.Wrong(at + ".name") {
			c.pathTwice(at, p.Name, first)
		}
		c.checkAmong(at, p, c.t.Paths[:i])
	}
	if len(c.t.Paths) > 0 && !slices.ContainsFunc(c.t.Paths, func(p Path) bool { return !p.Down }) {
		c.warn("$.paths", "all paths are down: nothing will get through")
	}
}

// checkAmong checks a path against the tunnel and the paths before it.
func (c *checker) checkAmong(at string, p Path, before []Path) {
	if p.Device != "" && p.Device == c.t.Device {
		c.refuse(at+".device", "%s would lead through the tunnel's own device %s", pathTitle(p.Name), p.Device)
	}
	if j := slices.IndexFunc(before, func(q Path) bool { return sameSockets(p, q) }); j >= 0 {
		c.refuse(at, "%s is the same as %s: both go from %s to %s", pathTitle(p.Name), pathTitle(before[j].Name), begins(p), p.Remote).Hint =
			"they must differ in device, local, remote or a port"
	}
	c.checkSwallowed(at, p)
}

// pathTwice is the error that two paths have one name.
func (c *checker) pathTwice(at, name string, first int) {
	line := c.doc.Place(pathAt(first)).Line
	e := c.refuse(at+".name", "path name %q is given twice: the path on line %d has it too", name, line)
	if c.missing(at + ".name") {
		e.Hint = "give it a name of its own: without one it has its device's"
	}
}

// sameSockets tells whether the other end could not tell two paths apart, or
// this one might not: the addresses and ports of both are the same.
func sameSockets(p, q Path) bool {
	if !p.Remote.IsValid() || p.Remote != q.Remote || p.LocalPort != q.LocalPort {
		return false
	}
	if p.Local.IsValid() && q.Local.IsValid() {
		return p.Local == q.Local
	}
	return p.Device != "" && p.Device == q.Device
}

// begins says where a path begins.
func begins(p Path) string {
	if p.Local.IsValid() {
		return netip.AddrPortFrom(p.Local, p.LocalPort).String()
	}
	return fmt.Sprintf("%s, port %d", p.Device, p.LocalPort)
}

// checkSwallowed checks that the tunnel's own packets don't go into the tunnel. Those of a
// socket that is bound to a device would not: the kernel passes over routes by others
// (fib_table_lookup, net/ipv4/fib_trie.c; RT6_LOOKUP_F_IFACE, net/ipv6/route.c). A route for
// all traffic may lie around such a path's remote; a narrower one is taken for a mistake.
func (c *checker) checkSwallowed(at string, p Path) {
	for _, a := range c.t.Addresses {
		switch {
		case a.Addr() == p.Remote.Addr() || a.Addr() == p.Local:
			c.refuse(at, "%s has the tunnel's inner address %s outside", pathTitle(p.Name), a.Addr())
		case a.Contains(p.Remote.Addr()):
			c.swallowed(at, p, "address", a)
		}
	}
	for _, r := range c.t.Routes {
		if !r.Contains(p.Remote.Addr()) || forAll(r) && p.Device != "" {
			continue
		}
		if e := c.swallowed(at, p, "route", r); forAll(r) {
			e.Hint = "bind the path to the device that it goes out by, e.g. `device: eth0`"
		}
	}
}

// forAll tells whether a route is for all traffic, or for one of the two halves that come
// before a default route that is there already.
func forAll(r netip.Prefix) bool { return r.Bits() <= 1 }

// swallowed is the error that a prefix of the tunnel's covers a remote.
func (c *checker) swallowed(at string, p Path, what string, by netip.Prefix) *Finding {
	return c.refuse(at+".remote", "remote %s of %s lies within the tunnel's %s %s: the tunnel's own packets would go into the tunnel",
		p.Remote.Addr(), pathTitle(p.Name), what, by)
}
