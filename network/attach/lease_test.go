package attach_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/network/attach"
	"cleat/network/networktest"
	"cleat/network/segment/segmenttest"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/vishvananda/netlink"
)

// dhcpServer is a DHCP server in the outside namespace that grants 198.51.100.7 to every
// client.
type dhcpServer struct {
	mu       sync.Mutex
	silent   bool
	sendNAK  bool   // in answer to renewals
	address  net.IP // granted instead of 198.51.100.7, if set
	noAck    bool   // it records the grant but sends no DHCPACK
	granted  bool
	hostName string            // of the last DHCPDISCOVER
	asked    []string          // client identifiers of all DHCPDISCOVERs
	options  []dhcpv4.Modifier // added to each answer
}

// waitGranted waits until the server has granted its address, or until it has not.
func (s *dhcpServer) waitGranted(t *testing.T, want bool) {
	t.Helper()
	segmenttest.Eventually(t, fmt.Sprintf("address granted: %t", want), func() bool {
		is := false
		s.with(func() { is = s.granted })
		return is == want
	})
}

func (s *dhcpServer) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (tb *testbed) startDHCP(lifetime time.Duration) *dhcpServer {
	tb.t.Helper()
	wire := find(tb.t, tb.outside, "wire")
	must(tb.t, wire.AddAddr(netip.MustParsePrefix("198.51.100.2/24")))
	s := &dhcpServer{}
	var s4 *server4.Server
	must(tb.t, tb.outside.Do(func() error {
		var err error
		s4, err = server4.NewServer("wire", nil, func(c net.PacketConn, peer net.Addr, m *dhcpv4.DHCPv4) {
			s.with(func() {
				if answer := s.answer(m, lifetime); answer != nil {
					c.WriteTo(answer.ToBytes(), peer) // fails if the server is being closed
				}
			})
		})
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		s4.Serve() // returns an error when the server is closed
	}()
	tb.t.Cleanup(func() { s4.Close(); <-done })
	return s
}

// withDHCP returns a testbed with such a server, and its snapshot before anything is
// attached.
func withDHCP(t *testing.T) (tb *testbed, s *dhcpServer, before []string) {
	t.Helper()
	needKinds(t, "macvlan")
	tb = newTestbed(t)
	s = tb.startDHCP(time.Hour)
	tb.repair()
	return tb, s, tb.snapshot()
}

// withLease also attaches a link with a lease, and returns the attachment's ID.
func withLease(t *testing.T) (tb *testbed, s *dhcpServer, before []string, id string) {
	t.Helper()
	tb, s, before = withDHCP(t)
	got, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
	must(t, err)
	return tb, s, before, got.Attachment.ID
}

func (s *dhcpServer) answer(m *dhcpv4.DHCPv4, lifetime time.Duration) *dhcpv4.DHCPv4 {
	kind := dhcpv4.MessageTypeAck
	switch m.MessageType() {
	case dhcpv4.MessageTypeRelease:
		s.granted = s.granted && !m.ClientIPAddr.Equal(net.IPv4(198, 51, 100, 7))
		return nil
	case dhcpv4.MessageTypeDiscover:
		kind = dhcpv4.MessageTypeOffer
		s.hostName = m.HostName()
		s.asked = append(s.asked, string(m.Options.Get(dhcpv4.OptionClientIdentifier)))
	case dhcpv4.MessageTypeRequest:
		s.granted = !s.silent
		if s.noAck {
			return nil
		}
	default:
		return nil
	}
	if s.silent {
		return nil
	}
	if s.sendNAK && m.MessageType() == dhcpv4.MessageTypeRequest && len(m.Options.Get(dhcpv4.OptionServerIdentifier)) == 0 {
		kind = dhcpv4.MessageTypeNak
	}
	address := net.IPv4(198, 51, 100, 7)
	if s.address != nil {
		address = s.address
	}
	gateway := net.IPv4(198, 51, 100, 2)
	modifiers := append([]dhcpv4.Modifier{dhcpv4.WithMessageType(kind), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(gateway)),
		dhcpv4.WithYourIP(address), dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithRouter(gateway),
		dhcpv4.WithLeaseTime(uint32(lifetime / time.Second)), dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 0x78}))}, s.options...)
	r, err := dhcpv4.NewReplyFromRequest(m, modifiers...)
	if err != nil {
		return nil
	}
	return r
}

// TestLease checks that a lease is configured on the link and listed, and that detaching
// releases it.
func TestLease(t *testing.T) {
	for _, kind := range []string{"macvlan", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			needKinds(t, kind)
			tb := newTestbed(t)
			s := tb.startDHCP(time.Hour)
			tb.repair()
			before := tb.snapshot()
			got, err := tb.attach(attach.Spec{Kind: kind, Parent: "nic", DHCP: true, DHCPHostName: "app"}, nil)
			must(t, err)
			if got.Lease == nil || got.Lease.Address != netip.MustParsePrefix("198.51.100.7/24") {
				t.Fatalf("got %+v", got.Lease)
			}
			inside := networktest.Netlink(t, tb.web)
			for _, want := range []string{"198.51.100.7/24", "198.51.100.2", "mtu 1400"} {
				if !slices.ContainsFunc(inside, func(line string) bool { return strings.Contains(line, want) }) {
					t.Errorf("%s is missing in the container: %q", want, inside)
				}
			}
			if all := tb.list(); len(all) != 1 || all[0].Lease == nil || all[0].Lease.Address != got.Lease.Address {
				t.Errorf("listed: %+v", all)
			}
			s.waitGranted(t, true)
			s.with(func() {
				if s.hostName != "app" {
					t.Errorf("the client's host name is %q", s.hostName)
				}
			})
			// A keeper that is killed while it writes leaves such a file.
			leases, err := filepath.Glob(filepath.Join(tb.state, "run", "*", "leases"))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(leases[0], "."+got.Attachment.ID+".json.new"), nil, 0o600))
			must(t, tb.detach("eth0", nil))
			s.waitGranted(t, false)
			if left, err := os.ReadDir(leases[0]); err != nil || len(left) > 0 {
				t.Errorf("remaining lease files: %v, %v", left, err)
			}
			tb.unchanged(before, "detached")
		})
	}
}

// TestNoLease checks that attaching fails without a DHCP server, and that the error says
// what was tried.
func TestNoLease(t *testing.T) {
	t.Parallel() // it mostly waits
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	s := tb.startDHCP(time.Hour)
	s.with(func() { s.silent = true })
	tb.repair()
	before := tb.snapshot()
	_, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
	if err == nil || !strings.Contains(err.Error(), "no DHCP server answered") {
		t.Errorf("got %v", err)
	}
	tb.unchanged(before, "refused")
}

// TestLeaseAllOrNothing makes attaching with DHCP fail at each point: nothing remains,
// not even the lease.
func TestLeaseAllOrNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	s := tb.startDHCP(time.Hour)
	spec := attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}
	tb.repair()
	before := tb.snapshot()
	points := 0
	_, err := tb.attach(spec, func() error { points++; return nil })
	must(t, err)
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
	for k := 8; k < points; k++ { // TestAllOrNothing covers the points before
		if _, err := tb.attach(spec, killAt(k)); err == nil {
			t.Fatalf("not killed at point %d of %d", k, points)
		}
		tb.repair()
		tb.unchanged(before, fmt.Sprintf("killed at point %d of %d", k, points))
		s.waitGranted(t, false)
	}
	tb.killDuringDetach(spec, before, func() { s.waitGranted(t, false) })
}

// killDuringDetach kills detaching at each point.
func (tb *testbed) killDuringDetach(spec attach.Spec, before []string, then func()) {
	tb.t.Helper()
	for k := 0; ; k++ {
		_, err := tb.attach(spec, nil)
		must(tb.t, err)
		err = tb.detach("eth0", killAt(k))
		tb.repair()
		tb.unchanged(before, fmt.Sprintf("killed at point %d of detaching", k))
		then()
		if err == nil {
			return
		}
	}
}

// TestLeaseUnconfirmed interrupts the request for a lease that the server has granted but
// not confirmed: the lease is released.
func TestLeaseUnconfirmed(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	s := tb.startDHCP(time.Hour)
	s.with(func() { s.noAck = true })
	tb.repair()
	before := tb.snapshot()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for granted := false; !granted && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			s.with(func() { granted = s.granted })
		}
		cancel()
	}()
	err := tb.onHost(func() error {
		_, err := attach.Attach(ctx, tb.config(), "web", attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true})
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.waitGranted(t, false)
	tb.unchanged(before, "interrupted")
}

// TestLeaseRouteInUse checks that a route of the lease that the container already has is
// ignored.
func TestLeaseRouteInUse(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	s := tb.startDHCP(time.Hour)
	s.with(func() {
		s.options = []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, []byte{24, 203, 0, 113, 198, 51, 100, 2, 24, 192, 0, 2, 198, 51, 100, 2}))}
	})
	to, err := netlink.ParseIPNet("203.0.113.0/24")
	must(t, err)
	must(t, handle(t, tb.web).RouteAdd(&netlink.Route{LinkIndex: 1, Dst: to, Scope: netlink.SCOPE_LINK}))
	tb.repair()
	before := tb.snapshot()
	got, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
	must(t, err)
	if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, "route to 203.0.113.0/24 is ignored, because the container has one") {
		t.Errorf("notes %q", notes)
	}
	if inside := networktest.Netlink(t, tb.web); !slices.ContainsFunc(inside, func(line string) bool { return strings.HasPrefix(line, "route 192.0.2.0/24") }) {
		t.Errorf("the other route is missing: %q", inside)
	}
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
}

// TestHostName checks that a host name is valid, and refused without DHCP.
func TestHostName(t *testing.T) {
	for text, spec := range map[string]attach.Spec{
		"is only used with DHCP": {DHCPHostName: "app"},
		"want letters, digits":   {DHCPHostName: "a b", DHCP: true},
	} {
		spec.Kind, spec.Parent = "macvlan", "nic"
		var bad *attach.SpecError
		if err := spec.Validate(); !errors.As(err, &bad) || bad.Param != "host-name" || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	if err := (attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true, DHCPHostName: "app"}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestHostileServer checks that a DHCP server can't redirect what the container reaches
// by its other links or what the host reaches, and that it can't set an MTU that is too
// small for the IPv6 address.
func TestHostileServer(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	s := tb.startDHCP(time.Hour)
	h := handle(t, tb.web)
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "own0"}, PeerName: "own1"}))
	own, err := h.LinkByName("own0")
	must(t, err)
	other, err := netlink.ParseAddr("10.1.2.3/16")
	must(t, err)
	must(t, h.AddrAdd(own, other))
	must(t, h.LinkSetUp(own))
	tb.repair()
	before := tb.snapshot()
	spec := attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true, HostShim: true, Addresses: prefixes("2001:db8::7/64")}
	s.with(func() {
		s.options = []dhcpv4.Modifier{
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, []byte{
				32, 10, 1, 0, 1, 198, 51, 100, 2, // a neighbour on the other link
				24, 10, 1, 9, 198, 51, 100, 2,
				16, 10, 1, 198, 51, 100, 2, // the other link's whole network
				8, 10, 198, 51, 100, 2, // a network that contains it
				0, 198, 51, 100, 2,
			})),
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{2, 0x40})),
		}
	})
	got, err := tb.attach(spec, nil)
	must(t, err)
	tb.expect("attached", []string{"10.0.0.0/8 via 198.51.100.2", "0.0.0.0/0 via 198.51.100.2", "2001:db8::7/64"},
		[]string{"10.1.0.1/32", "10.1.9.0/24", "10.1.0.0/16 via 198", "mtu 576"})
	if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, "route to 10.1.0.1/32 is ignored") || !strings.Contains(notes, "MTU of 576") {
		t.Errorf("notes: %s", notes)
	}
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")

	// The host has no network with this address, so its packets for the address keep
	// their route.
	s.with(func() { s.options, s.address = nil, net.IPv4(203, 0, 113, 9) })
	spec.Addresses = nil
	got, err = tb.attach(spec, nil)
	must(t, err)
	routes, err := handle(t, tb.host).RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: netlink.NewIPNet(net.IPv4(203, 0, 113, 9))}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) > 0 {
		t.Errorf("the server changed a route of the host: %v, %v", routes, err)
	}
	if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, "203.0.113.9") {
		t.Errorf("notes: %s", notes)
	}
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
}
