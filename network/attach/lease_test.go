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
	"cleat/network/segment/segmenttest"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/vishvananda/netlink"
)

// leaser is a DHCP server outside that gives everybody 198.51.100.7.
type leaser struct {
	mu       sync.Mutex
	mute     bool
	forbids  bool   // to go on with an address
	gives    net.IP // another address
	unheard  bool   // grants, and says nothing
	granted  bool
	hostName string            // of the last who asked
	asked    []string          // client identifiers
	options  []dhcpv4.Modifier // of each answer
}

// holds waits until the server counts its address as somebody's, or nobody's.
func (s *leaser) holds(t *testing.T, want bool) {
	t.Helper()
	segmenttest.Eventually(t, fmt.Sprintf("the address is somebody's: %t", want), func() bool {
		is := false
		s.do(func() { is = s.granted })
		return is == want
	})
}

func (s *leaser) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (w *world) leases(lifetime time.Duration) *leaser {
	w.t.Helper()
	wire := find(w.t, w.outside, "wire")
	must(w.t, wire.AddAddr(netip.MustParsePrefix("198.51.100.2/24")))
	s := &leaser{}
	var s4 *server4.Server
	must(w.t, w.outside.Do(func() error {
		var err error
		s4, err = server4.NewServer("wire", nil, func(c net.PacketConn, peer net.Addr, m *dhcpv4.DHCPv4) {
			s.do(func() {
				if answer := s.answer(m, lifetime); answer != nil {
					c.WriteTo(answer.ToBytes(), peer) // it may be closed by now
				}
			})
		})
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		s4.Serve() // ends with an error when it is closed
	}()
	w.t.Cleanup(func() { s4.Close(); <-done })
	return s
}

// leasing is a world with such a server, as it is before anything is attached.
func leasing(t *testing.T) (w *world, s *leaser, before []string) {
	t.Helper()
	need(t, "macvlan")
	w = newWorld(t)
	s = w.leases(time.Hour)
	w.repair()
	return w, s, w.snapshot()
}

// leased is one with an attachment that has a lease.
func leased(t *testing.T) (w *world, s *leaser, before []string, id string) {
	t.Helper()
	w, s, before = leasing(t)
	got, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
	must(t, err)
	return w, s, before, got.Attachment.ID
}

func (s *leaser) answer(m *dhcpv4.DHCPv4, lifetime time.Duration) *dhcpv4.DHCPv4 {
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
		s.granted = !s.mute
		if s.unheard {
			return nil
		}
	default:
		return nil
	}
	if s.mute {
		return nil
	}
	if s.forbids && m.MessageType() == dhcpv4.MessageTypeRequest && len(m.Options.Get(dhcpv4.OptionServerIdentifier)) == 0 {
		kind = dhcpv4.MessageTypeNak
	}
	address := net.IPv4(198, 51, 100, 7)
	if s.gives != nil {
		address = s.gives
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

// A lease is set on the link, listed, and given back when that goes.
func TestLease(t *testing.T) {
	for _, kind := range []string{"macvlan", "ipvlan"} {
		t.Run(kind, func(t *testing.T) {
			need(t, kind)
			w := newWorld(t)
			s := w.leases(time.Hour)
			w.repair()
			before := w.snapshot()
			got, err := w.attach(attach.Spec{Kind: kind, Parent: "nic", DHCP: true, DHCPHostName: "app"}, nil)
			must(t, err)
			if got.Lease == nil || got.Lease.Address != netip.MustParsePrefix("198.51.100.7/24") {
				t.Fatalf("got %+v", got.Lease)
			}
			inside := lookInto(t, w.web)
			for _, want := range []string{"198.51.100.7/24", "198.51.100.2", "mtu 1400"} {
				if !slices.ContainsFunc(inside, func(line string) bool { return strings.Contains(line, want) }) {
					t.Errorf("no %s inside: %q", want, inside)
				}
			}
			if all := w.list(); len(all) != 1 || all[0].Lease == nil || all[0].Lease.Address != got.Lease.Address {
				t.Errorf("listed: %+v", all)
			}
			s.holds(t, true)
			s.do(func() {
				if s.hostName != "app" {
					t.Errorf("it said that it is %q", s.hostName)
				}
			})
			// As a keeper leaves it that is killed while it writes.
			leases, err := filepath.Glob(filepath.Join(w.state, "run", "*", "leases"))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(leases[0], "."+got.Attachment.ID+".json.new"), nil, 0o600))
			must(t, w.detach("eth0", nil))
			s.holds(t, false)
			if left, err := os.ReadDir(leases[0]); err != nil || len(left) > 0 {
				t.Errorf("left of the lease: %v, %v", left, err)
			}
			w.unchanged(before, "detached")
		})
	}
}

// Without a server there is no link, and it says what was tried.
func TestNoLease(t *testing.T) {
	t.Parallel() // it waits most of the time
	need(t, "macvlan")
	w := newWorld(t)
	s := w.leases(time.Hour)
	s.do(func() { s.mute = true })
	w.repair()
	before := w.snapshot()
	_, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
	if err == nil || !strings.Contains(err.Error(), "no DHCP server answered") {
		t.Errorf("got %v", err)
	}
	w.unchanged(before, "refused")
}

// A lease is got, or nothing is left of it, wherever that fails or is killed.
func TestLeaseAllOrNothing(t *testing.T) {
	t.Parallel() // it waits most of the time
	need(t, "macvlan")
	w := newWorld(t)
	s := w.leases(time.Hour)
	want := attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}
	w.repair()
	before := w.snapshot()
	points := 0
	_, err := w.attach(want, func() error { points++; return nil })
	must(t, err)
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
	for k := 8; k < points; k++ { // what comes before, TestAllOrNothing tries
		if _, err := w.attach(want, stopAt(k)); err == nil {
			t.Fatalf("not stopped at point %d of %d", k, points)
		}
		w.repair()
		w.unchanged(before, fmt.Sprintf("killed at point %d of %d", k, points))
		s.holds(t, false)
	}
	w.stopDuringDetach(want, before, func() { s.holds(t, false) })
}

// stopDuringDetach detaches, killed at each point of it.
func (w *world) stopDuringDetach(want attach.Spec, before []string, then func()) {
	w.t.Helper()
	for k := 0; ; k++ {
		_, err := w.attach(want, nil)
		must(w.t, err)
		err = w.detach("eth0", stopAt(k))
		w.repair()
		w.unchanged(before, fmt.Sprintf("killed at point %d of detaching", k))
		then()
		if err == nil {
			return
		}
	}
}

// What a server granted and nobody heard of is given back when that is interrupted.
func TestLeaseUnheard(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	s := w.leases(time.Hour)
	s.do(func() { s.unheard = true })
	w.repair()
	before := w.snapshot()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for granted := false; !granted && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			s.do(func() { granted = s.granted })
		}
		cancel()
	}()
	err := w.do(func() error {
		_, err := attach.Attach(ctx, w.config(), "web", attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true})
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.holds(t, false)
	w.unchanged(before, "interrupted")
}

// A route of the server's that the container has already stays the container's.
func TestLeaseRouteTaken(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	s := w.leases(time.Hour)
	s.do(func() {
		s.options = []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, []byte{24, 203, 0, 113, 198, 51, 100, 2, 24, 192, 0, 2, 198, 51, 100, 2}))}
	})
	to, err := netlink.ParseIPNet("203.0.113.0/24")
	must(t, err)
	must(t, handle(t, w.web).RouteAdd(&netlink.Route{LinkIndex: 1, Dst: to, Scope: netlink.SCOPE_LINK}))
	w.repair()
	before := w.snapshot()
	got, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
	must(t, err)
	if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, "route to 203.0.113.0/24 is ignored, because the container has one") {
		t.Errorf("notes %q", notes)
	}
	if inside := lookInto(t, w.web); !slices.ContainsFunc(inside, func(line string) bool { return strings.HasPrefix(line, "route 192.0.2.0/24") }) {
		t.Errorf("the other route is not there: %q", inside)
	}
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
}

// A host name is for a DHCP server, and must be one.
func TestHostName(t *testing.T) {
	for text, w := range map[string]attach.Spec{
		"is only used with DHCP": {DHCPHostName: "app"},
		"want letters, digits":   {DHCPHostName: "a b", DHCP: true},
	} {
		w.Kind, w.Parent = "macvlan", "nic"
		var bad *attach.SpecError
		if err := w.Validate(); !errors.As(err, &bad) || bad.Param != "host-name" || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", w, err)
		}
	}
	if err := (attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true, DHCPHostName: "app"}).Validate(); err != nil {
		t.Error(err)
	}
}

// A hostile server takes neither what the container reaches by its other links nor what the
// host reaches, and can't make the link too narrow for the addresses that were wanted.
func TestHostileServer(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	s := w.leases(time.Hour)
	h := handle(t, w.web)
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "own0"}, PeerName: "own1"}))
	own, err := h.LinkByName("own0")
	must(t, err)
	other, err := netlink.ParseAddr("10.1.2.3/16")
	must(t, err)
	must(t, h.AddrAdd(own, other))
	must(t, h.LinkSetUp(own))
	w.repair()
	before := w.snapshot()
	want := attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true, HostShim: true, Addresses: prefixes("2001:db8::7/64")}
	s.do(func() {
		s.options = []dhcpv4.Modifier{
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, []byte{
				32, 10, 1, 0, 1, 198, 51, 100, 2, // one of the other link's neighbours
				24, 10, 1, 9, 198, 51, 100, 2,
				16, 10, 1, 198, 51, 100, 2, // its whole network
				8, 10, 198, 51, 100, 2, // what is beside that
				0, 198, 51, 100, 2,
			})),
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{2, 0x40})),
		}
	})
	got, err := w.attach(want, nil)
	must(t, err)
	w.wants("attached", []string{"10.0.0.0/8 via 198.51.100.2", "0.0.0.0/0 via 198.51.100.2", "2001:db8::7/64"},
		[]string{"10.1.0.1/32", "10.1.9.0/24", "10.1.0.0/16 via 198", "mtu 576"})
	if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, "route to 10.1.0.1/32 is ignored") || !strings.Contains(notes, "MTU of 576") {
		t.Errorf("notes: %s", notes)
	}
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")

	// The host has no network in which that address is: its packets for it go where they went.
	s.do(func() { s.options, s.gives = nil, net.IPv4(203, 0, 113, 9) })
	want.Addresses = nil
	got, err = w.attach(want, nil)
	must(t, err)
	routes, err := handle(t, w.host).RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: netlink.NewIPNet(net.IPv4(203, 0, 113, 9))}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) > 0 {
		t.Errorf("the server took a route of the host's: %v, %v", routes, err)
	}
	if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, "203.0.113.9") {
		t.Errorf("notes: %s", notes)
	}
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
}
