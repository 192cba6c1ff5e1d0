package spec

import (
	"fmt"
	"net/netip"

	"cleat/internal/rate"
	"cleat/tunnel/secure"
)

// checkPaths checks each path by itself.
func (c *checker) checkPaths() {
	if c.missing("$.paths") || c.findings.given("$.paths") && len(c.given.Paths) == 0 {
		c.wrong("$.paths", "at least one, e.g. [{device: eth0, remote: 198.51.100.2}]", "there are no paths")
	}
	for i, g := range c.given.Paths {
		if i == MaxPaths {
			c.wrong(pathAt(i), fmt.Sprintf("at most %d", MaxPaths), "there are %d paths", len(c.given.Paths))
			break
		}
		c.t.Paths = append(c.t.Paths, c.checkPath(pathAt(i), i, g))
	}
}

// pathAt is where the path with an index stands in the file.
func pathAt(i int) string { return childAt("$.paths", i) }

// childAt is where the element of a list with an index stands.
func childAt(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

// checkPath makes a path of what is given. What is wrong stays zero.
func (c *checker) checkPath(at string, i int, g givenPath) Path {
	p := Path{Name: c.pathName(at, i, g)}
	if c.doc.Wrong(at) {
		return p
	}
	if c.findings.given(at + ".device") {
		if p.Device = g.Device; !validDevice(g.Device) {
			c.wrong(at+".device", wantDevice, "device %q", g.Device)
			p.Device = ""
		}
	}
	p.Remote = c.remote(at, g.Remote)
	p.Local = c.local(at, g.Local, p.Remote.Addr())
	if c.missing(at+".device") && c.missing(at+".local") {
		c.refuse(at, "%s has neither device nor local", pathTitle(p.Name)).Hint = "say where it begins, e.g. device: eth0"
	}
	p.LocalPort = c.port(at+".port", g.Port, c.t.Port)
	p.RateBitsPerSec = c.rate(at+".rate", g.Rate)
	p.Weight = c.weight(at+".weight", g.Weight)
	p.MTUBytes = c.pathMTU(at+".mtu", g.MTU, p)
	p.Down = c.word(at+".state", "state", g.State, states, stateUp) == stateDown
	return p
}

// pathName is the name of a path: its own, its device's, or its number.
func (c *checker) pathName(at string, i int, g givenPath) string {
	numbered := fmt.Sprintf("path%d", i+1)
	switch {
	case c.findings.given(at+".name") && validName(g.Name, maxPathName):
		return g.Name
	case c.findings.given(at + ".name"):
		c.wrong(at+".name", wantName(maxPathName), "path name %q", g.Name)
	case c.missing(at+".name") && c.findings.given(at+".device") && validName(g.Device, maxPathName):
		return g.Device
	}
	return numbered
}

// pathTitle is a path in a message.
func pathTitle(name string) string { return fmt.Sprintf("path %q", name) }

// remote reads the other end's address.
func (c *checker) remote(at, text string) netip.AddrPort {
	const want = "an IP address, with its port if it is another: 198.51.100.2:4755, [2001:db8::1]:4755"
	path := at + ".remote"
	if c.missing(path) && !c.doc.Wrong(at) {
		c.wrong(at, want, "remote is missing")
	}
	if !c.findings.given(path) {
		return netip.AddrPort{}
	}
	a, err := netip.ParseAddr(text)
	remote := netip.AddrPortFrom(a, c.t.Port)
	if err != nil {
		remote, err = netip.ParseAddrPort(text)
	}
	if err != nil || remote.Port() == 0 {
		c.wrong(path, want, "remote %q", text)
		return netip.AddrPort{}
	}
	if !c.host(path, "remote", remote.Addr()) {
		return netip.AddrPort{}
	}
	if remote.Addr().IsLinkLocalUnicast() && c.missing(at+".device") {
		c.refuse(path, "remote %s is on each link another: the path needs a device", remote.Addr()).Hint = "add `device:`"
	}
	return remote
}

// local reads the own address of a path to a remote.
func (c *checker) local(at, text string, remote netip.Addr) netip.Addr {
	path := at + ".local"
	if !c.findings.given(path) {
		return netip.Addr{}
	}
	local, err := netip.ParseAddr(text)
	if err != nil {
		c.wrong(path, "an IP address; the local port is `port:`", "local %q", text)
		return netip.Addr{}
	}
	switch {
	case !c.host(path, "local", local):
		return netip.Addr{}
	case !remote.IsValid():
	case local.Is4() != remote.Is4():
		c.wrong(path, "an address of remote's family, "+family(remote), "local %s is of %s", local, family(local))
	case local == remote:
		c.refuse(path, "local and remote are both %s", local)
	}
	return local
}

// host checks that an address can be one host's.
func (c *checker) host(path, what string, a netip.Addr) bool {
	switch {
	case a.Is4In6():
		c.wrong(path, a.Unmap().String(), "%s %s is IPv4 in IPv6's clothes", what, a)
	case a.Zone() != "":
		c.wrong(path, "an address without zone, and the path's device", "%s %s", what, a)
	case a.IsUnspecified(), a.IsMulticast(), a == broadcast:
		c.wrong(path, "an address of one host's", "%s %s", what, a)
	default:
		return true
	}
	return false
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// rate reads an upper limit in bit/s.
func (c *checker) rate(path, text string) int64 {
	const want = "64K…1000T bit/s"
	if !c.findings.given(path) {
		return 0
	}
	v, err := rate.Parse(text)
	switch {
	case err != nil:
		c.wrong(path, rate.Want, "rate %q", text)
	case v < MinRate, v > MaxRate:
		c.wrong(path, want, "rate %q", text)
	default:
		return int64(v)
	}
	return 0
}

// weight reads a share among the paths.
func (c *checker) weight(path string, weight int) int {
	switch {
	case !c.findings.given(path):
		return 1
	case weight < 1 || weight > MaxWeight:
		c.wrong(path, fmt.Sprintf("1…%d", MaxWeight), "weight %d", weight)
		return 1
	case c.t.Scheduler != Weighted && !c.doc.Wrong("$.scheduler"):
		c.warn(path, "weight does nothing: it is for the scheduler weighted, and this one is %s", c.t.Scheduler)
	}
	return weight
}

// pathMTU checks the MTU of a path, which has to carry the inner packets.
func (c *checker) pathMTU(at string, mtu int, p Path) int {
	if !p.Remote.IsValid() {
		return c.mtu(at, mtu, minMTU4)
	}
	least := minMTU4
	if p.Remote.Addr().Is6() {
		least = minMTU6
	}
	if mtu = c.mtu(at, mtu, least); mtu == 0 {
		return 0
	}
	around := c.t.leastOverhead(p)
	switch {
	case c.t.Inner6() && mtu-around < minMTU6:
		c.wrong(at, fmt.Sprintf("%d or more, for inner IPv6: 1280 and at least %d around it", minMTU6+around, around), "mtu %d", mtu)
	case c.t.MTUBytes > mtu-around:
		c.warn(at, "%s has room for inner packets of %d bytes at most, and the tunnel's mtu is %d", pathTitle(p.Name), mtu-around, c.t.MTUBytes)
	}
	return mtu
}

// leastOverhead is by how many bytes a packet becomes longer on a path at the
// least: IP (RFC 791, RFC 8200), UDP, and what the form has behind it.
func (t *Tunnel) leastOverhead(p Path) int {
	const (
		ip4, ip6, udp = 20, 40, 8
		native        = 24   // GRE and shim: wire.HeaderBytes
		gre, field    = 4, 4 // RFC 2890: key and sequence number have 4 bytes each
	)
	n := ip4 + udp
	if p.Remote.Addr().Is6() {
		n = ip6 + udp
	}
	switch {
	case t.Key != nil:
		return n + native + secure.Overhead
	case t.Form == Native:
		return n + native
	}
	n += gre
	if t.Compat.HasKey {
		n += field
	}
	if t.Compat.Sequence {
		n += field
	}
	return n
}
