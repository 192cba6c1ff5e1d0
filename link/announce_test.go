package link_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestAnnounceARP gives a neighbour a wrong entry for the address and checks that the
// announcement corrects it. The entry is stale, as learnt entries are: announcements
// don't change permanent ones.
func TestAnnounceARP(t *testing.T) {
	for kind, ends := range map[string]func(t *testing.T) (here, there *link.Link){
		"veth": func(t *testing.T) (here, there *link.Link) {
			return cable(t, newNS(t, "a"), "eth0", newNS(t, "b"), "eth0")
		},
		"netkit": func(t *testing.T) (here, there *link.Link) {
			a, b := newNS(t, "a"), newNS(t, "b")
			l, err := link.Create(a, link.NetkitSpec{Attrs: attrs("eth0"), Peer: attrs("eth0"), Mode: link.NetkitL2}, link.Target{PeerNS: b})
			must(t, err)
			return up(t, l), up(t, find(t, b, "eth0"))
		},
		"macvlan": func(t *testing.T) (here, there *link.Link) {
			o := newLAN(t)
			return create(t, o.host, link.MacvlanSpec{Attrs: attrs("m"), Parent: "eth0", Mode: link.MacvlanBridge}, o.c1), o.outside.link
		},
		"vlan": func(t *testing.T) (here, there *link.Link) {
			a, b := newNS(t, "a"), newNS(t, "b")
			cable(t, a, "eth0", b, "eth0")
			spec := link.VLANSpec{Attrs: attrs("v"), Parent: "eth0", ID: 7}
			return create(t, a, spec, newNS(t, "c")), create(t, b, spec, nil)
		},
		"vxlan": func(t *testing.T) (here, there *link.Link) {
			u := newHostPair(t)
			return create(t, u.a, link.VXLANSpec{Attrs: attrs("x"), VNI: 7, Remote: u.addrB}, u.c1),
				create(t, u.b, link.VXLANSpec{Attrs: attrs("x"), VNI: 7, Remote: u.addrA}, u.c2)
		},
		"geneve": func(t *testing.T) (here, there *link.Link) {
			u := newHostPair(t)
			return create(t, u.a, link.GeneveSpec{Attrs: attrs("g"), VNI: 7, Remote: u.addrB}, u.c1),
				create(t, u.b, link.GeneveSpec{Attrs: attrs("g"), VNI: 7, Remote: u.addrA}, u.c2)
		},
	} {
		for _, notify := range []string{"0", "1"} {
			t.Run(kind+", arp_notify "+notify, func(t *testing.T) {
				requireKind(t, kind)
				here, there := ends(t)
				checkAnnounced(t, here, there, notify)
			})
		}
	}
}

func checkAnnounced(t *testing.T, here, there *link.Link, notify string) {
	t.Helper()
	if there.NS().String() != "outside" {
		addr(t, there, "192.0.2.9/24")
	}
	ours := mustAddr("192.0.2.66")
	addr(t, here, ours.String()+"/24")
	name := fmt.Sprintf("net/ipv4/conf/%s/arp_notify", here.Name())
	sysctl(t, here.NS(), name, notify)
	want := mac(t, here)
	for until := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) { // the link may need time to come up
		addStaleNeighbor(t, there, ours)
		must(t, link.AnnounceARP(here.NS(), here.Index()))
		time.Sleep(time.Millisecond)
		got, _, err := there.Neighbor(ours)
		must(t, err)
		if got == want {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("the neighbour has address %s, want %s", got, want)
		}
	}
	if got := readSysctl(t, here.NS(), name); got != notify {
		t.Errorf("arp_notify is %s after the announcement, want %s", got, notify)
	}
	if got := mac(t, here); got != want {
		t.Errorf("the Ethernet address is %s after the announcement, want %s", got, want)
	}
}

// TestAnnounceARPRefuses checks that arp_notify is restored if the driver can't set the
// address.
func TestAnnounceARPRefuses(t *testing.T) {
	requireKind(t, "ipvlan")
	o := newLAN(t)
	l := create(t, o.host, link.IPvlanSpec{Attrs: attrs("i"), Parent: "eth0", Mode: link.IPvlanL2}, o.c1)
	if err := link.AnnounceARP(l.NS(), l.Index()); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("announce on ipvlan: %v, want EOPNOTSUPP", err)
	}
	if got := readSysctl(t, l.NS(), "net/ipv4/conf/i/arp_notify"); got != "0" {
		t.Errorf("arp_notify is %s after the refusal, want 0", got)
	}
}

func TestAnnounceARPDown(t *testing.T) {
	requireKind(t, "veth")
	l, _ := cable(t, newNS(t, "a"), "eth0", newNS(t, "b"), "eth0")
	must(t, l.Down())
	if err := link.AnnounceARP(l.NS(), l.Index()); !errors.Is(err, unix.ENETDOWN) {
		t.Errorf("announce on a link that is down: %v, want ENETDOWN", err)
	}
}

// addStaleNeighbor adds a neighbour entry as the kernel learns it, with the address of
// a machine that does not exist.
func addStaleNeighbor(t *testing.T, l *link.Link, ip netip.Addr) {
	t.Helper()
	h, err := link.Handle(l.NS())
	must(t, err)
	defer h.Close()
	must(t, h.NeighSet(&netlink.Neigh{LinkIndex: l.Index(), IP: ip.AsSlice(), State: netlink.NUD_STALE, HardwareAddr: []byte{2, 0, 0x5e, 0x10, 0, 0x99}}))
}
