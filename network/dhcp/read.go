package dhcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/link"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// errOffer begins what is wrong with an offer or an acknowledgement.
var errOffer = errors.New("refused")

// minLease is the shortest lease that is taken: of a shorter one half is over while a slow
// server answers, and a hostile server would have us ask without end.
const minLease = 4 * time.Second

const (
	// minMTU is the least that is taken, in bytes: what every host must accept (RFC 791
	// section 3.2). RFC 2132 section 5.1 allows 68, of which a server can only want that little
	// gets through.
	minMTU = 576

	// minBits is the shortest prefix of a subnet: that of class A (RFC 791 section 3.2). With a
	// shorter one the subnet would take what a default route is for.
	minBits = 8

	// minRenew is the earliest T1, for leases of two minutes and more: a server could have its
	// client ask all the time (RFC 2131 section 4.4.5 wants a minute between two requests).
	minRenew = time.Minute

	maxRoutes      = 64
	maxNameServers = 3 // MAXNS (resolv.conf(5)): a resolver asks no more
)

// terms are what an offer or acknowledgement grants, checked.
type terms struct {
	address  netip.Prefix
	server   netip.Addr
	routes   []Route
	dns      []netip.Addr
	domain   string
	mtu      int
	hop      link.MAC      // who sent the frame
	lifetime time.Duration // 0: for ever
	t1, t2   time.Duration
	notes    []string
}

// maxNotes bounds what a server can have us keep.
const maxNotes = 16

func (t *terms) note(format string, args ...any) {
	if len(t.notes) < maxNotes {
		t.notes = append(t.notes, fmt.Sprintf(format, args...))
	}
}

// read checks what a server's message grants. What it makes no sense without is an error;
// other nonsense is left out, with a note. old is the lease that is extended, if one is.
func read(m *dhcpv4.DHCPv4, old *Lease) (terms, error) {
	var t terms
	for _, part := range []func(*dhcpv4.DHCPv4, *Lease) error{t.readServer, t.readAddress, t.readTimes} {
		if err := part(m, old); err != nil {
			return terms{}, err
		}
	}
	t.readRoutes(m)
	t.readNames(m)
	t.readMTU(m)
	return t, nil
}

// serverOf is the server's identifier, or invalid.
func serverOf(m *dhcpv4.DHCPv4) netip.Addr {
	a, _ := addr4(m.Options.Get(dhcpv4.OptionServerIdentifier))
	if !isHost(a) {
		return netip.Addr{}
	}
	return a
}

// nameOf is the server for messages.
func nameOf(m *dhcpv4.DHCPv4) string {
	if a := serverOf(m); a.IsValid() {
		return a.String()
	}
	return "a server that does not say which"
}

func (t *terms) readServer(m *dhcpv4.DHCPv4, old *Lease) error {
	t.server = serverOf(m)
	if t.server.IsValid() {
		return nil
	}
	if old != nil && !m.Options.Has(dhcpv4.OptionServerIdentifier) {
		t.server = old.Server
		return nil
	}
	return fmt.Errorf("%w: it does not say which server it is from", errOffer)
}

func (t *terms) readAddress(m *dhcpv4.DHCPv4, old *Lease) error {
	a, ok := netip.AddrFromSlice(m.YourIPAddr)
	switch {
	case !ok || !isHost(a) || a.IsLinkLocalUnicast(): // link-local ones are nobody's to give (RFC 3927 section 2.8)
		return fmt.Errorf("%w: address %s", errOffer, m.YourIPAddr)
	case a == t.server:
		return fmt.Errorf("%w: address %s, the server's own", errOffer, a)
	case old != nil && a != old.Address.Addr():
		return fmt.Errorf("%w: address %s instead of %s", errOffer, a, old.Address.Addr())
	}
	bits, err := t.readMask(m, a, old)
	if err != nil {
		return err
	}
	t.address = netip.PrefixFrom(a, bits)
	if bits < 31 && (a == t.address.Masked().Addr() || a == lastOf(t.address)) { // RFC 3021: /31 has none of these
		return fmt.Errorf("%w: address %s is its network's own or for everyone in it", errOffer, t.address)
	}
	return nil
}

// readMask is the length of the subnet's prefix.
func (t *terms) readMask(m *dhcpv4.DHCPv4, a netip.Addr, old *Lease) (int, error) {
	b := m.Options.Get(dhcpv4.OptionSubnetMask)
	switch {
	case !m.Options.Has(dhcpv4.OptionSubnetMask) && old != nil:
		return old.Address.Bits(), nil
	case !m.Options.Has(dhcpv4.OptionSubnetMask):
		bits := classBits(a)
		t.note("no subnet mask: /%d, from the address's class", bits)
		return bits, nil
	case len(b) != 4:
		return 0, fmt.Errorf("%w: a subnet mask of %d bytes", errOffer, len(b))
	}
	mask := binary.BigEndian.Uint32(b)
	bits := 0
	for mask<<bits&(1<<31) != 0 {
		bits++
	}
	if bits < minBits || mask != ^uint32(0)<<(32-bits) {
		return 0, fmt.Errorf("%w: subnet mask %s", errOffer, netip.AddrFrom4([4]byte(b)))
	}
	return bits, nil
}

// classBits is the length of the network's part where nothing is said of it (RFC 791
// section 3.2).
func classBits(a netip.Addr) int {
	switch first := a.As4()[0]; {
	case first < 128:
		return 8
	case first < 192:
		return 16
	}
	return 24
}

// forever is a lease that does not end (RFC 2131 section 3.3).
const forever = 0xffffffff

// readTimes reads the length of the lease, T1 and T2; the latter two are as RFC 2131 section
// 4.4.5 has them where what the server says makes no sense.
func (t *terms) readTimes(m *dhcpv4.DHCPv4, _ *Lease) error {
	s, ok := number4(m.Options.Get(dhcpv4.OptionIPAddressLeaseTime))
	if !ok {
		return fmt.Errorf("%w: no lease time", errOffer)
	}
	if s == forever {
		return nil
	}
	t.lifetime = time.Duration(s) * time.Second
	if t.lifetime < minLease {
		return fmt.Errorf("%w: a lease of %s, %s at least", errOffer, t.lifetime, minLease)
	}
	t.t1, t.t2 = t.lifetime/2, t.lifetime/8*7
	s1, ok1 := number4(m.Options.Get(dhcpv4.OptionRenewTimeValue))
	s2, ok2 := number4(m.Options.Get(dhcpv4.OptionRebindingTimeValue))
	t1, t2 := t.t1, t.t2
	if ok1 {
		t1 = time.Duration(s1) * time.Second
	}
	if ok2 {
		t2 = time.Duration(s2) * time.Second
	}
	if min(t.t1, minRenew) <= t1 && t1 < t2 && t2 < t.lifetime {
		t.t1, t.t2 = t1, t2
	} else {
		t.note("T1 %s and T2 %s of a lease of %s: %s and %s instead", t1, t2, t.lifetime, t.t1, t.t2)
	}
	return nil
}

func (t *terms) readRoutes(m *dhcpv4.DHCPv4) {
	if b := m.Options.Get(dhcpv4.OptionClasslessStaticRoute); len(b) > 0 {
		var all dhcpv4.Routes
		if err := all.FromBytes(b); err == nil {
			for _, r := range all {
				t.addRoute(r)
			}
			if more := len(t.routes) - maxRoutes; more > 0 {
				t.routes = t.routes[:maxRoutes]
				t.note("%d more routes left out", more)
			}
			return
		}
		t.note("classless routes can't be read: the routers count instead")
	}
	routers, ok := list4(m.Options.Get(dhcpv4.OptionRouter))
	if !ok {
		t.note("routers can't be read")
	}
	for _, r := range routers {
		if !isHost(r) || r == t.address.Addr() {
			t.note("router %s left out", r)
			continue
		}
		// Others are for when the first is dead (RFC 2132 section 3.5), which nobody
		// here would notice.
		t.routes = append(t.routes, t.via(netip.PrefixFrom(netip.IPv4Unspecified(), 0), r))
		return
	}
}

// addRoute takes one classless route (RFC 3442). Bits behind the prefix don't count.
func (t *terms) addRoute(r *dhcpv4.Route) {
	ones, _ := r.Dest.Mask.Size()
	dst, ok1 := netip.AddrFromSlice(r.Dest.IP)
	via, ok2 := netip.AddrFromSlice(r.Router)
	to := netip.PrefixFrom(dst, ones).Masked()
	neighbours := via == netip.IPv4Unspecified()
	switch {
	case !ok1 || !ok2 || to.Addr().IsMulticast() || to.Addr().IsLoopback(),
		!neighbours && (!isHost(via) || via == t.address.Addr()):
		t.note("route to %s via %s left out", to, via)
		return
	case neighbours && to == t.address.Masked():
		return // the kernel makes this one, with the address
	case slices.ContainsFunc(t.routes, func(r Route) bool { return r.To == to }):
		t.note("another route to %s, via %s, left out", to, via)
		return
	case neighbours:
		t.routes = append(t.routes, Route{To: to})
		return
	}
	t.routes = append(t.routes, t.via(to, via))
}

func (t *terms) via(to netip.Prefix, router netip.Addr) Route {
	return Route{To: to, Via: router, OnLink: !t.address.Contains(router)}
}

func (t *terms) readNames(m *dhcpv4.DHCPv4) {
	servers, ok := list4(m.Options.Get(dhcpv4.OptionDomainNameServer))
	if !ok {
		t.note("name servers can't be read")
	}
	for _, a := range servers {
		switch {
		case !isHost(a):
			t.note("name server %s left out", a)
		case !slices.Contains(t.dns, a):
			t.dns = append(t.dns, a)
		}
	}
	if more := len(t.dns) - maxNameServers; more > 0 {
		t.dns = t.dns[:maxNameServers]
		t.note("%d more name servers left out", more)
	}
	// Some servers end it with a zero byte (RFC 2132 section 2).
	name := strings.TrimSuffix(strings.TrimRight(string(m.Options.Get(dhcpv4.OptionDomainName)), "\x00"), ".")
	switch {
	case validName(name):
		t.domain = name
	case name != "":
		t.note("domain %.80q left out", name)
	}
}

func (t *terms) readMTU(m *dhcpv4.DHCPv4) {
	b := m.Options.Get(dhcpv4.OptionInterfaceMTU)
	if !m.Options.Has(dhcpv4.OptionInterfaceMTU) {
		return
	}
	if len(b) != 2 || binary.BigEndian.Uint16(b) < minMTU {
		t.note("mtu %x left out: two bytes and %d at least", b[:min(len(b), 8)], minMTU)
		return
	}
	t.mtu = int(binary.BigEndian.Uint16(b))
}

// isHost tells whether an IPv4 address can be one machine's on a network.
func isHost(a netip.Addr) bool {
	if !a.Is4() || a.IsMulticast() || a.IsLoopback() {
		return false
	}
	first := a.As4()[0]
	return first != 0 && first < 240 // "this network" and class E (RFC 1122 section 3.2.1.3, RFC 1112 section 4)
}

// lastOf is the highest address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	n := binary.BigEndian.Uint32(a[:]) | ^uint32(0)>>p.Bits()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// addr4 is an option that is one address.
func addr4(b []byte) (netip.Addr, bool) {
	if len(b) != 4 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(b)), true
}

// list4 is an option that is any number of addresses.
func list4(b []byte) ([]netip.Addr, bool) {
	if len(b)%4 != 0 {
		return nil, false
	}
	var out []netip.Addr
	for part := range slices.Chunk(b, 4) {
		out = append(out, netip.AddrFrom4([4]byte(part)))
	}
	return out, true
}

// number4 is an option that is a number of four bytes.
func number4(b []byte) (uint32, bool) {
	if len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}
