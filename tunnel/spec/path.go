package spec

import (
	"fmt"
	"net/netip"

	"cleat/internal/rate"
	"cleat/tunnel/secure"
)

func (c *checker) checkPaths() {
	if c.isMissing("$.paths") || c.isSet("$.paths") && len(c.raw.Paths) == 0 {
		c.reject("$.paths", "at least one, e.g. [{device: eth0, remote: 198.51.100.2}]", "no paths")
	}
	for i, raw := range c.raw.Paths {
		if i == MaxPaths {
			c.reject(pathKey(i), fmt.Sprintf("at most %d", MaxPaths), "%d paths", len(c.raw.Paths))
			break
		}
		c.t.Paths = append(c.t.Paths, c.checkPath(pathKey(i), i, raw))
	}
}

func pathKey(i int) string { return elementKey("$.paths", i) }

func elementKey(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

// checkPath parses and checks a path. Invalid values stay zero.
func (c *checker) checkPath(at string, i int, raw rawPath) Path {
	p := Path{Name: c.pathName(at, i, raw)}
	if c.doc.Wrong(at) {
		return p
	}
	if c.isSet(at + ".device") {
		if p.Device = raw.Device; !validDevice(raw.Device) {
			c.reject(at+".device", deviceSyntax, "device %q", raw.Device)
			p.Device = ""
		}
	}
	p.Remote = c.parseRemote(at, raw.Remote)
	p.Local = c.parseLocal(at, raw.Local, p.Remote.Addr())
	if c.isMissing(at+".device") && c.isMissing(at+".local") && !c.isMissing(at+".remote") {
		c.fail(at, "%s has neither device nor local", pathTitle(p.Name)).Hint = "add the device that it starts at, e.g. device: eth0"
	}
	p.LocalPort = uint16(c.checkInt(at+".port", "port", raw.Port, 1, 65535, "", int(c.t.Port)))
	p.RateBitsPerSec = c.parseRate(at+".rate", raw.Rate)
	p.Weight = c.checkWeight(at+".weight", raw.Weight)
	p.MTUBytes = c.checkPathMTU(at+".mtu", raw.MTU, p)
	p.Metered = raw.Metered
	p.Down = c.oneOf(at+".state", "state", raw.State, states, stateUp) == stateDown
	return p
}

// pathName returns the name of a path: its own, its device's, or one made of its number.
func (c *checker) pathName(at string, i int, raw rawPath) string {
	numbered := fmt.Sprintf("path%d", i+1)
	switch {
	case c.isSet(at+".name") && validName(raw.Name, maxPathName):
		return raw.Name
	case c.isSet(at + ".name"):
		c.reject(at+".name", nameSyntax(maxPathName), "path name %q", raw.Name)
	case c.isMissing(at+".name") && c.isSet(at+".device") && validName(raw.Device, maxPathName):
		return raw.Device
	}
	return numbered
}

func pathTitle(name string) string { return fmt.Sprintf("path %q", name) }

func (c *checker) parseRemote(at, text string) netip.AddrPort {
	const want = "an IP address, with a port if it differs from the tunnel's: 198.51.100.2:4755, [2001:db8::1]:4755"
	path := at + ".remote"
	if c.isMissing(path) && !c.doc.Wrong(at) && c.t.Key == nil {
		e := c.fail(at, "remote is missing: want %s; it may be left out only at one end of a tunnel with keys", want)
		e.Allowed, e.Hint = want, "add `remote:`; or `key:` at both ends, see `cleat tunnel key --help`"
	}
	if !c.isSet(path) {
		return netip.AddrPort{}
	}
	a, err := netip.ParseAddr(text)
	remote := netip.AddrPortFrom(a, c.t.Port)
	if err != nil {
		remote, err = netip.ParseAddrPort(text)
	}
	if err != nil || remote.Port() == 0 {
		c.reject(path, want, "remote %q", text)
		return netip.AddrPort{}
	}
	if !c.checkHost(path, "remote", remote.Addr()) {
		return netip.AddrPort{}
	}
	if remote.Addr().IsLinkLocalUnicast() && c.isMissing(at+".device") {
		c.fail(path, "remote %s is link-local: the path needs a device", remote.Addr()).Hint = "add `device:`"
	}
	return remote
}

func (c *checker) parseLocal(at, text string, remote netip.Addr) netip.Addr {
	path := at + ".local"
	if !c.isSet(path) {
		return netip.Addr{}
	}
	local, err := netip.ParseAddr(text)
	if err != nil {
		c.reject(path, "an IP address; set the local port with `port:`", "local %q", text)
		return netip.Addr{}
	}
	switch {
	case !c.checkHost(path, "local", local):
		return netip.Addr{}
	case !remote.IsValid():
	case local.Is4() != remote.Is4():
		c.reject(path, "an address of remote's family, "+family(remote), "local %s is %s", local, family(local))
	case local == remote:
		c.fail(path, "local and remote are both %s", local)
	}
	return local
}

// checkHost reports whether an address can be a host's, and adds an error if not.
func (c *checker) checkHost(path, setting string, a netip.Addr) bool {
	switch {
	case a.Is4In6():
		c.reject(path, a.Unmap().String(), "%s %s is an IPv4-mapped IPv6 address", setting, a)
	case a.Zone() != "":
		c.reject(path, "an address without a zone; the path's device selects the link", "%s %s", setting, a)
	case a.IsUnspecified(), a.IsMulticast(), a == broadcast:
		c.reject(path, "a unicast address", "%s %s", setting, a)
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

// parseRate parses an upper limit in bit/s.
func (c *checker) parseRate(path, text string) int64 {
	const want = "64K…1000T bit/s"
	if !c.isSet(path) {
		return 0
	}
	v, err := rate.Parse(text)
	switch {
	case err != nil:
		c.reject(path, rate.Want, "rate %q", text)
	case v < MinRate, v > MaxRate:
		c.reject(path, want, "rate %q", text)
	default:
		return int64(v)
	}
	return 0
}

// checkWeight returns a valid weight, and otherwise 1.
func (c *checker) checkWeight(path string, weight int) int {
	checked := c.checkInt(path, "weight", weight, 1, MaxWeight, "", 1)
	if c.isSet(path) && checked == weight && c.t.Scheduler != Weighted && !c.doc.Wrong("$.scheduler") {
		c.warn(path, "weight has no effect: it is a setting of the scheduler weighted, and the scheduler is %s", c.t.Scheduler)
	}
	return checked
}

// checkPathMTU checks the MTU of a path, which has to carry the inner packets.
func (c *checker) checkPathMTU(at string, mtu int, p Path) int {
	mtu = c.checkMTU(at, mtu, p.Remote.Addr().Is6())
	if mtu == 0 || !p.Remote.IsValid() {
		return mtu
	}
	overhead := c.t.minOverhead(p)
	switch {
	case c.t.Inner6() && mtu-overhead < minMTU6:
		c.reject(at, fmt.Sprintf("%d or more for inner IPv6: 1280 and at least %d of headers", minMTU6+overhead, overhead), "mtu %d", mtu)
	case c.t.MTUBytes > mtu-overhead:
		c.warn(at, "%s carries inner packets of at most %d bytes, and the tunnel's mtu is %d", pathTitle(p.Name), mtu-overhead, c.t.MTUBytes)
	}
	return mtu
}

// minOverhead returns the fewest bytes that a path adds to a packet: IP (RFC 791, RFC
// 8200), UDP, and the header of the form.
func (t *Tunnel) minOverhead(p Path) int {
	const (
		ip4, ip6, udp = 20, 40, 8
		native        = 24   // GRE and shim: wire.HeaderBytes
		gre, field    = 4, 4 // RFC 2890: key and sequence number take 4 bytes each
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
