package announce_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/network/announce"
	"cleat/network/segment"
	"cleat/network/segment/segmenttest"

	"github.com/vishvananda/netlink"
)

// stale is the Ethernet address that had the addresses before.
var stale = link.MAC{0x02, 0, 0x5e, 0x10, 0, 0x99}

// A neighbour with a stale entry, and the switch, learn the new place of an address.
func TestAddress(t *testing.T) {
	on := func(spec link.Spec) func(*testing.T, *segmenttest.Network) *link.Link {
		return func(t *testing.T, b *segmenttest.Network) *link.Link { return b.Container(t, "web", spec) }
	}
	for name, made := range map[string]func(*testing.T, *segmenttest.Network) *link.Link{
		"macvlan": on(segmenttest.Macvlan()),
		"ipvlan":  on(segmenttest.IPvlan()),
		"veth": func(t *testing.T, b *segmenttest.Network) *link.Link {
			return b.Plug(t, segmenttest.NewNS(t, "web"), "host0", link.MAC{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := segmenttest.New(t)
			l := made(t, b)
			here := address("10")
			segmenttest.Must(t, b.OutsideLink.AddAddr(address("9").v4))
			here.each(func(p netip.Prefix) {
				segmenttest.Must(t, l.AddAddr(p))
				remember(t, b.OutsideLink, p.Addr(), stale)
			})
			segmenttest.Must(t, announce.Address(t.Context(), segmenttest.At(l, b.Uplink), here.v4.Addr(), here.v6.Addr()))
			want := segmenttest.MAC(t, l)
			here.each(func(p netip.Prefix) {
				segmenttest.Eventually(t, p.Addr().String()+" is cached at "+want.String(), func() bool {
					got, ok, err := b.OutsideLink.Neighbor(p.Addr())
					segmenttest.Must(t, err)
					return ok && got == want
				})
			})
			fdb := false
			segmenttest.Eventually(t, "the switch learns the place", func() bool {
				fdb = fdb || strings.HasPrefix(portOf(t, b, want), "host")
				return fdb
			})
		})
	}
}

// portOf returns the name of the switch's port behind which it has learned mac.
func portOf(t *testing.T, b *segmenttest.Network, mac link.MAC) string {
	t.Helper()
	h, err := link.Handle(b.Switch)
	segmenttest.Must(t, err)
	defer h.Close()
	all, err := h.NeighList(0, 7) // AF_BRIDGE
	segmenttest.Must(t, err)
	for _, n := range all {
		if len(n.HardwareAddr) == len(mac) && link.MAC(n.HardwareAddr) == mac {
			l, err := h.LinkByIndex(n.LinkIndex)
			segmenttest.Must(t, err)
			return l.Attrs().Name
		}
	}
	return ""
}

// An address can be announced a second time, to a neighbour that has learned another
// owner since.
func TestAddressAgain(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	here := address("10")
	segmenttest.Must(t, b.OutsideLink.AddAddr(address("9").v4))
	segmenttest.Must(t, l.AddAddr(here.v4))
	for range 2 {
		remember(t, b.OutsideLink, here.v4.Addr(), stale)
		segmenttest.Must(t, announce.Address(t.Context(), segmenttest.At(l, nil), here.v4.Addr()))
		segmenttest.Eventually(t, "the neighbour learns the address", func() bool {
			got, ok, err := b.OutsideLink.Neighbor(here.v4.Addr())
			segmenttest.Must(t, err)
			return ok && got == segmenttest.MAC(t, l)
		})
	}
}

// An IPv6 address is not announced while the kernel looks for duplicates of it.
func TestAddressWaitsForDAD(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	p := address("10").v6
	addTentative(t, l, p)
	remember(t, b.OutsideLink, p.Addr(), stale)
	segmenttest.Must(t, announce.Address(t.Context(), segmenttest.At(l, nil), p.Addr()))
	if flags := flagsOf(t, l, p.Addr()); flags&ifaTentative != 0 {
		t.Error("it was announced during duplicate address detection")
	}
	segmenttest.Eventually(t, "the neighbour learns the address", func() bool {
		got, ok, err := b.OutsideLink.Neighbor(p.Addr())
		segmenttest.Must(t, err)
		return ok && got == segmenttest.MAC(t, l)
	})
}

// An address of which the kernel found a duplicate is a conflict.
func TestAddressConflict(t *testing.T) {
	b := segmenttest.New(t)
	p := address("10").v6
	segmenttest.Must(t, b.OutsideLink.AddAddr(p))
	l := b.Container(t, "web", segmenttest.Macvlan())
	addTentative(t, l, p)
	var c *announce.Conflict
	if err := announce.Address(t.Context(), segmenttest.At(l, nil), p.Addr()); !errors.As(err, &c) || c.Addr != p.Addr() {
		t.Errorf("got %v", err)
	}
}

// IFA_F_TENTATIVE (include/uapi/linux/if_addr.h).
const ifaTentative = 0x40

// addTentative adds an address with duplicate address detection.
func addTentative(t *testing.T, l *link.Link, p netip.Prefix) {
	t.Helper()
	h, err := link.Handle(l.NS())
	segmenttest.Must(t, err)
	defer h.Close()
	a, err := netlink.ParseAddr(p.String())
	segmenttest.Must(t, err)
	segmenttest.Must(t, h.AddrAdd(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.Index()}}, a))
}

func flagsOf(t *testing.T, l *link.Link, addr netip.Addr) int {
	t.Helper()
	h, err := link.Handle(l.NS())
	segmenttest.Must(t, err)
	defer h.Close()
	all, err := h.AddrList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.Index()}}, netlink.FAMILY_V6)
	segmenttest.Must(t, err)
	for _, a := range all {
		if a.IP.String() == addr.String() {
			return a.Flags
		}
	}
	t.Fatalf("the link does not have %s", addr)
	return 0
}

// Links without neighbours have none to ask or to notify.
func TestNotApplicable(t *testing.T) {
	lab.Need(t)
	ns := segmenttest.NewNS(t, "web")
	here := address("10")
	lo, err := link.Find(ns, "lo")
	segmenttest.Must(t, err)
	segmenttest.Must(t, lo.Up())
	links := map[string]*link.Link{"loopback": lo}
	for name, spec := range map[string]link.Spec{
		"tun":       link.TunSpec{Attrs: link.Attrs{Name: "tun0"}},
		"wireguard": link.WireGuardSpec{Attrs: link.Attrs{Name: "wg0"}},
		"dummy":     link.DummySpec{Attrs: link.Attrs{Name: "dummy0"}},
	} {
		l, err := link.Create(ns, spec, link.Target{})
		var lack *link.Lack
		if errors.As(err, &lack) {
			t.Logf("without %s: %v", name, lack)
			continue
		}
		segmenttest.Must(t, err)
		segmenttest.Must(t, l.Up())
		links[name] = l
	}
	for name, l := range links {
		here.each(func(p netip.Prefix) {
			v, err := announce.Check(t.Context(), segmenttest.At(l, nil), p.Addr(), announce.Timing{})
			if err != nil || v.NotApplicable == "" || v.Conflict != nil {
				t.Errorf("check %s on %s: %+v, %v", p, name, v, err)
			}
			if err := announce.Address(t.Context(), segmenttest.At(l, nil), p.Addr()); err != nil {
				t.Errorf("announce %s on %s: %v", p, name, err)
			}
		})
	}
}

// A link that is down is an error.
func TestDown(t *testing.T) {
	b := segmenttest.New(t)
	l := b.Container(t, "web", segmenttest.Macvlan())
	segmenttest.Must(t, l.Down())
	address("10").each(func(p netip.Prefix) {
		if _, err := announce.Check(t.Context(), segmenttest.At(l, nil), p.Addr(), announce.Fast()); !errors.Is(err, segment.ErrDown) {
			t.Errorf("check: %v", err)
		}
		if err := announce.Address(t.Context(), segmenttest.At(l, nil), p.Addr()); !errors.Is(err, segment.ErrDown) {
			t.Errorf("announce: %v", err)
		}
	})
}
