package dhcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// errInvalid is wrapped by errors about offers and acknowledgements.
var errInvalid = errors.New("invalid")

// minLease is the shortest lease that is accepted. Half of a shorter one would pass
// before a slow server answers, and a hostile server could make the client ask without
// end.
const minLease = 4 * time.Second

const (
	// minMTU is the smallest MTU in bytes that is accepted: what every host must be able
	// to receive (RFC 791 section 3.2). RFC 2132 section 5.1 allows 68, with which a
	// server could slow its clients down.
	minMTU = 576

	// minPrefixBits is the shortest prefix of a subnet: that of class A (RFC 791 section
	// 3.2). A shorter one would take the place of a default route.
	minPrefixBits = 8

	// minRenew is the smallest T1 for leases of two minutes and more. With a smaller one,
	// a server could make its client ask all the time (RFC 2131 section 4.4.5 requires a
	// minute between two requests).
	minRenew = time.Minute

	maxRoutes      = 64
	maxNameServers = 3 // MAXNS (resolv.conf(5)): the resolver uses no more
)

// terms is what an offer or acknowledgement grants, validated.
type terms struct {
	Lease                  // without the client and times
	lifetime time.Duration // 0: unlimited
	t1, t2   time.Duration
}

// maxNotes bounds the notes that a server can cause.
const maxNotes = 16

func (t *terms) note(format string, args ...any) {
	if len(t.Notes) < maxNotes {
		t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
	}
}

// read validates what a server's message grants. What is essential causes an error;
// anything else that is invalid is left out, with a note. old is the lease that is being
// renewed, if any.
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

// serverOf returns the server's identifier; the zero Addr if it is invalid.
func serverOf(m *dhcpv4.DHCPv4) netip.Addr {
	a, _ := netip.AddrFromSlice(m.ServerIdentifier())
	if !isUnicast(a) {
		return netip.Addr{}
	}
	return a
}

// serverName returns the server's identifier for messages.
func serverName(m *dhcpv4.DHCPv4) string {
	if a := serverOf(m); a.IsValid() {
		return a.String()
	}
	return "unidentified server"
}

func (t *terms) readServer(m *dhcpv4.DHCPv4, old *Lease) error {
	t.Server = serverOf(m)
	if t.Server.IsValid() {
		return nil
	}
	if old != nil && !m.Options.Has(dhcpv4.OptionServerIdentifier) {
		t.Server = old.Server
		return nil
	}
	return fmt.Errorf("%w: no server identifier", errInvalid)
}

func (t *terms) readAddress(m *dhcpv4.DHCPv4, old *Lease) error {
	a, ok := netip.AddrFromSlice(m.YourIPAddr)
	switch {
	case !ok || !isUnicast(a) || a.IsLinkLocalUnicast(): // link-local addresses are not granted by servers (RFC 3927 section 2.8)
		return fmt.Errorf("%w: address %s", errInvalid, m.YourIPAddr)
	case a == t.Server:
		return fmt.Errorf("%w: address %s is the server's", errInvalid, a)
	case old != nil && a != old.Address.Addr():
		return fmt.Errorf("%w: address %s instead of %s", errInvalid, a, old.Address.Addr())
	}
	bits, err := t.readMask(m, a, old)
	if err != nil {
		return err
	}
	t.Address = netip.PrefixFrom(a, bits)
	if bits < 31 && (a == t.Address.Masked().Addr() || !t.Address.Contains(a.Next())) { // a /31 has neither (RFC 3021)
		return fmt.Errorf("%w: address %s is the network or broadcast address", errInvalid, t.Address)
	}
	return nil
}

func (t *terms) readMask(m *dhcpv4.DHCPv4, a netip.Addr, old *Lease) (int, error) {
	b := m.Options.Get(dhcpv4.OptionSubnetMask)
	switch {
	case !m.Options.Has(dhcpv4.OptionSubnetMask) && old != nil:
		return old.Address.Bits(), nil
	case !m.Options.Has(dhcpv4.OptionSubnetMask):
		bits := classBits(a)
		t.note("no subnet mask; using /%d, as for the address's class", bits)
		return bits, nil
	case len(b) != 4:
		return 0, fmt.Errorf("%w: subnet mask of %d bytes", errInvalid, len(b))
	}
	mask := binary.BigEndian.Uint32(b)
	bits := 0
	for mask<<bits&(1<<31) != 0 {
		bits++
	}
	if bits < minPrefixBits || mask != ^uint32(0)<<(32-bits) {
		return 0, fmt.Errorf("%w: subnet mask %s", errInvalid, netip.AddrFrom4([4]byte(b)))
	}
	return bits, nil
}

// classBits returns the prefix length that an address implies (RFC 791 section 3.2).
func classBits(a netip.Addr) int {
	switch first := a.As4()[0]; {
	case first < 128:
		return 8
	case first < 192:
		return 16
	}
	return 24
}

// forever is the lease time of a lease that does not end (RFC 2131 section 3.3).
const forever = 0xffffffff * time.Second

// readTimes reads the lease time, T1 and T2. If T1 and T2 are invalid or absent, it uses
// the defaults of RFC 2131 section 4.4.5.
func (t *terms) readTimes(m *dhcpv4.DHCPv4, _ *Lease) error {
	lifetime := m.IPAddressLeaseTime(-1)
	switch {
	case lifetime < 0:
		return fmt.Errorf("%w: no lease time", errInvalid)
	case lifetime == forever:
		return nil
	case lifetime < minLease:
		return fmt.Errorf("%w: lease time of %s, want at least %s", errInvalid, lifetime, minLease)
	}
	t.lifetime, t.t1, t.t2 = lifetime, lifetime/2, lifetime/8*7
	t1, t2 := m.IPAddressRenewalTime(t.t1), m.IPAddressRebindingTime(t.t2)
	if min(t.t1, minRenew) <= t1 && t1 < t2 && t2 < lifetime {
		t.t1, t.t2 = t1, t2
	} else {
		t.note("T1 %s and T2 %s don't fit a lease of %s; using %s and %s", t1, t2, t.lifetime, t.t1, t.t2)
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
			if more := len(t.Routes) - maxRoutes; more > 0 {
				t.Routes = t.Routes[:maxRoutes]
				t.note("%d more routes ignored", more)
			}
			return
		}
		t.note("malformed classless routes; using the routers instead")
	}
	for _, r := range t.readHosts(m, dhcpv4.OptionRouter, "router") {
		if r == t.Address.Addr() {
			t.note("router %s ignored", r)
			continue
		}
		// The others are for when the first is dead (RFC 2132 section 3.5), which nothing
		// here would notice.
		t.Routes = append(t.Routes, t.via(netip.PrefixFrom(netip.IPv4Unspecified(), 0), r))
		return
	}
}

// addRoute adds a classless route (RFC 3442). Bits beyond the prefix length are ignored.
func (t *terms) addRoute(r *dhcpv4.Route) {
	ones, _ := r.Dest.Mask.Size()
	dst, ok1 := netip.AddrFromSlice(r.Dest.IP)
	via, ok2 := netip.AddrFromSlice(r.Router)
	to := netip.PrefixFrom(dst, ones).Masked()
	neighbours := via == netip.IPv4Unspecified()
	switch {
	case !ok1 || !ok2 || to.Addr().IsMulticast() || to.Addr().IsLoopback(),
		!neighbours && (!isUnicast(via) || via == t.Address.Addr()):
		t.note("route to %s via %s ignored", to, via)
		return
	case neighbours && to == t.Address.Masked():
		return // the kernel adds this route with the address
	case slices.ContainsFunc(t.Routes, func(r Route) bool { return r.To == to }):
		t.note("another route to %s, via %s, ignored", to, via)
		return
	case neighbours:
		t.Routes = append(t.Routes, Route{To: to})
		return
	}
	t.Routes = append(t.Routes, t.via(to, via))
}

func (t *terms) via(to netip.Prefix, router netip.Addr) Route {
	return Route{To: to, Via: router, OnLink: !t.Address.Contains(router)}
}

func (t *terms) readNames(m *dhcpv4.DHCPv4) {
	for _, a := range t.readHosts(m, dhcpv4.OptionDomainNameServer, "name server") {
		if !slices.Contains(t.DNS, a) {
			t.DNS = append(t.DNS, a)
		}
	}
	if more := len(t.DNS) - maxNameServers; more > 0 {
		t.DNS = t.DNS[:maxNameServers]
		t.note("%d more name servers ignored", more)
	}
	// Some servers append a zero byte (RFC 2132 section 2).
	name := strings.TrimSuffix(strings.TrimRight(string(m.Options.Get(dhcpv4.OptionDomainName)), "\x00"), ".")
	switch {
	case validName(name):
		t.Domain = name
	case name != "":
		t.note("domain %.80q ignored", name)
	}
}

// readHosts returns the unicast addresses in an option that is a list of addresses of what.
func (t *terms) readHosts(m *dhcpv4.DHCPv4, code dhcpv4.OptionCode, what string) (all []netip.Addr) {
	b := m.Options.Get(code)
	if len(b)%4 != 0 {
		t.note("malformed %ss ignored", what)
		return nil
	}
	for part := range slices.Chunk(b, 4) {
		if a := netip.AddrFrom4([4]byte(part)); isUnicast(a) {
			all = append(all, a)
		} else {
			t.note("%s %s ignored", what, a)
		}
	}
	return all
}

func (t *terms) readMTU(m *dhcpv4.DHCPv4) {
	b := m.Options.Get(dhcpv4.OptionInterfaceMTU)
	if !m.Options.Has(dhcpv4.OptionInterfaceMTU) {
		return
	}
	if len(b) != 2 || binary.BigEndian.Uint16(b) < minMTU {
		t.note("MTU %x ignored; want two bytes, at least %d", b[:min(len(b), 8)], minMTU)
		return
	}
	t.MTU = int(binary.BigEndian.Uint16(b))
}

// isUnicast reports whether an IPv4 address can belong to one host.
func isUnicast(a netip.Addr) bool {
	if !a.Is4() || a.IsMulticast() || a.IsLoopback() {
		return false
	}
	first := a.As4()[0]
	return first != 0 && first < 240 // "this network" and class E (RFC 1122 section 3.2.1.3, RFC 1112 section 4)
}
