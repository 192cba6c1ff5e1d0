package attach_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/networktest"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
)

// reattach attaches a again. The container is found by its qualified name.
func (tb *testbed) reattach(a *attach.Attachment, hook func() error) error {
	return tb.onHost(func() error {
		cfg := tb.config().WithHook(hook)
		find := cfg.Find
		cfg.Find = func(ctx context.Context, ref string) (attach.Container, *netns.NS, error) {
			if ref != "test:web" {
				return attach.Container{}, nil, netns.ErrNotFound
			}
			return find(ctx, "web")
		}
		_, err := attach.Reattach(tb.t.Context(), cfg, a)
		return err
	})
}

func (tb *testbed) maintain(id string, hook func() error) (got attach.LeaseReport, err error) {
	err = tb.onHost(func() error {
		got, err = attach.MaintainLease(tb.t.Context(), tb.config().WithHook(hook), id)
		return err
	})
	return got, err
}

// makeDue makes a lease due for renewal.
func (tb *testbed) makeDue(id string) {
	tb.t.Helper()
	all, err := filepath.Glob(filepath.Join(tb.state, "run", "*", "leases", id+".json"))
	must(tb.t, err)
	if len(all) != 1 {
		tb.t.Fatalf("leases: %q", all)
	}
	text, err := os.ReadFile(all[0])
	must(tb.t, err)
	l := tb.list()[0].Lease
	old, now := l.Renew.Format(time.RFC3339Nano), l.Obtained.Wall.Format(time.RFC3339Nano)
	must(tb.t, os.WriteFile(all[0], []byte(strings.Replace(string(text), `"renew": "`+old, `"renew": "`+now, 1)), 0o644))
}

func (tb *testbed) hasLine(what string) bool {
	return slices.ContainsFunc(networktest.Netlink(tb.t, tb.web), func(line string) bool { return strings.Contains(line, what) })
}

// expect checks that the container's network state has lines that contain each string of
// present, and none that contain a string of absent.
func (tb *testbed) expect(when string, present, absent []string) {
	tb.t.Helper()
	for _, what := range present {
		if !tb.hasLine(what) {
			tb.t.Errorf("%s: %s is missing in the container: %q", when, what, networktest.Netlink(tb.t, tb.web))
		}
	}
	for _, what := range absent {
		if tb.hasLine(what) {
			tb.t.Errorf("%s: unexpected %s in the container: %q", when, what, networktest.Netlink(tb.t, tb.web))
		}
	}
}

// TestMaintainLease checks that a lease is renewed when it is due, that its address is
// removed when it expires, and that a new lease is requested. The link and its other
// addresses stay.
func TestMaintainLease(t *testing.T) {
	t.Parallel() // it mostly waits
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	s := tb.startDHCP(4 * time.Second)
	got, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("2001:db8::9/64"), DHCP: true}, nil)
	must(t, err)
	id := got.Attachment.ID
	link := tb.list()[0].Index
	e, err := tb.maintain(id, nil)
	if err != nil || e.Done != "" || e.Next <= 0 || e.Next > 2*time.Second {
		t.Errorf("extend: %+v, %v", e, err)
	}
	time.Sleep(e.Next) // leases are timed by a clock that can't be set
	if e, err = tb.maintain(id, nil); err != nil || e.Next <= time.Second || !strings.HasPrefix(e.Done, "renewed") {
		t.Errorf("extended: %+v, %v", e, err)
	}
	if now := tb.list()[0].Lease; !now.Expires.After(got.Lease.Expires) {
		t.Errorf("renewed, but the expiry changed from %s to %s", got.Lease.Expires, now.Expires)
	}

	s.with(func() { s.silent = true })
	for tb.hasLine("198.51.100.7/24") && t.Context().Err() == nil {
		if e, err = tb.maintain(id, nil); e.Next > 0 {
			time.Sleep(e.Next)
		}
	}
	if err == nil || e.Next != 0 {
		t.Errorf("without a server: %+v, %v", e, err)
	}
	tb.expect("without a lease", []string{"2001:db8::9/64"}, []string{"198.51.100."})
	s.with(func() { s.silent, s.address = false, net.IPv4(198, 51, 100, 8) })
	if e, err = tb.maintain(id, nil); err != nil || !e.NewAddress {
		t.Errorf("with a server again: %+v, %v", e, err)
	}
	tb.expect("with another lease", []string{"2001:db8::9/64", "198.51.100.8/24", "via 198.51.100.2"}, []string{"198.51.100.7"})
	if all := tb.list(); all[0].State != attach.Attached || all[0].Index != link || all[0].Lease.Address.Addr() != addrs("198.51.100.8")[0] {
		t.Errorf("not the same link, or not the new lease: %+v", all)
	}
}

// TestLeaseRefused checks that the address of a lease that the server refuses to renew is
// removed, and that another lease takes its place.
func TestLeaseRefused(t *testing.T) {
	t.Parallel()
	tb, s, before, id := withLease(t)
	s.with(func() { s.sendNAK, s.address = true, net.IPv4(198, 51, 100, 8) })
	tb.makeDue(id)
	if e, err := tb.maintain(id, nil); err != nil || !e.NewAddress || !strings.Contains(e.Done, "refused by") {
		t.Errorf("forbidden: %+v, %v", e, err)
	}
	tb.expect("forbidden", []string{"198.51.100.8/24", "via 198.51.100.2"}, []string{"198.51.100.7"})
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
}

// TestLeaseRefusedKilled kills the request for another lease at each point: no
// unconfirmed lease counts as a lease, and the next call asks again until one is
// confirmed.
func TestLeaseRefusedKilled(t *testing.T) {
	t.Parallel()
	tb, s, before, id := withLease(t)
	k, whole := 0, false
	for ; !whole; k++ {
		s.with(func() { s.sendNAK, s.address = true, net.IPv4(198, 51, 100, byte(8+k)) })
		tb.makeDue(id)
		_, err := tb.maintain(id, killAt(k))
		whole = err == nil
		s.with(func() { s.sendNAK = false })
		if _, err := tb.maintain(id, nil); err != nil {
			t.Fatalf("after it was killed at point %d: %v", k, err)
		}
		l := tb.list()[0].Lease
		tb.expect(fmt.Sprintf("killed at point %d", k), []string{l.Address.String(), "via 198.51.100.2"}, nil)
		if l.Expires.IsZero() || len(l.Routes) == 0 {
			t.Errorf("killed at point %d: unconfirmed lease: %+v", k, l)
		}
	}
	if k < 6 {
		t.Errorf("the hook was called at only %d points", k)
	}
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
}

// TestMaintainLeaseChanges checks that the changes of a renewed lease are applied, and
// that detaching removes them, when that is killed at any point.
func TestMaintainLeaseChanges(t *testing.T) {
	t.Parallel()
	tb, s, before := withDHCP(t)
	more := []dhcpv4.Modifier{
		dhcpv4.WithNetmask(net.CIDRMask(25, 32)), dhcpv4.WithRouter(net.IPv4(198, 51, 100, 3)),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{4, 0xb0})),
	}
	first := func() string {
		t.Helper()
		s.with(func() { s.options = nil })
		got, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
		must(t, err)
		tb.expect("at first", []string{"198.51.100.7/24", "via 198.51.100.2", "mtu 1400"}, nil)
		s.with(func() { s.options = more })
		tb.makeDue(got.Attachment.ID)
		return got.Attachment.ID
	}
	changed := func(when string) {
		t.Helper()
		tb.expect(when, []string{"198.51.100.7/25", "via 198.51.100.3", "mtu 1200"}, []string{"198.51.100.7/24", "via 198.51.100.2"})
	}
	points := 0
	e, err := tb.maintain(first(), func() error { points++; return nil })
	if err != nil || !strings.Contains(e.Done, "routes") {
		t.Errorf("extended: %+v, %v", e, err)
	}
	changed("extended")
	s.with(func() { s.options = more[:1] }) // the first router and MTU again
	tb.makeDue("test.web.eth0")
	if _, err := tb.maintain("test.web.eth0", nil); err != nil {
		t.Error(err)
	}
	tb.expect("changed back", []string{"via 198.51.100.2", "mtu 1400"}, []string{"via 198.51.100.3"})
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
	if points < 5 {
		t.Fatalf("the hook was called at only %d points", points)
	}
	for k := range points {
		id := first()
		if _, err := tb.maintain(id, killAt(k)); !errors.Is(err, attach.ErrKilled) {
			t.Fatalf("not killed at point %d of %d: %v", k, points, err)
		}
		if k%2 == 0 { // the next keeper continues
			if _, err := tb.maintain(id, nil); err != nil {
				t.Errorf("after point %d: %v", k, err)
			}
			changed("changed by the next keeper")
		}
		must(t, tb.detach("eth0", nil))
		tb.unchanged(before, "killed, then detached")
	}
}

// TestMaintainLeaseRestoresAddress checks that an address that somebody removed is added
// again, with the routes of the lease and of the spec.
func TestMaintainLeaseRestoresAddress(t *testing.T) {
	tb, _, before := withDHCP(t)
	route := attach.Route{To: netip.MustParsePrefix("203.0.113.0/24")}
	got, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true, Routes: []attach.Route{route}}, nil)
	must(t, err)
	before2 := networktest.Netlink(t, tb.web)
	h := handle(t, tb.web)
	eth0, err := h.LinkByName("eth0")
	must(t, err)
	addresses, err := h.AddrList(eth0, 2)
	must(t, err)
	must(t, h.AddrDel(eth0, &addresses[0]))
	tb.expect("removed", nil, []string{"198.51.100."})
	if e, err := tb.maintain(got.Attachment.ID, nil); err != nil || !e.NewAddress {
		t.Errorf("restored: %+v, %v", e, err)
	}
	if now := networktest.Netlink(t, tb.web); !reflect.DeepEqual(now, before2) {
		t.Errorf("restored:\n%q, before\n%q", now, before2)
	}
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
}

// TestReattachKilled kills Reattach at each point: the attachment stays stored, and
// nothing half-made remains.
func TestReattachKilled(t *testing.T) {
	needKinds(t, "bridge")
	tb := newTestbed(t)
	tb.repair()
	before := tb.snapshot()
	remove := func() {
		t.Helper()
		h := handle(t, tb.web)
		eth0, err := h.LinkByName("eth0")
		must(t, err)
		must(t, h.LinkDel(eth0))
	}
	points, k := 0, 0
	count := func() error { points++; return nil }
	for ; k <= points; k++ {
		got, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Keep: true}, nil)
		must(t, err)
		remove()
		if all := tb.list(); len(all) != 1 || all[0].State != attach.Missing {
			t.Fatalf("removed: %+v", all)
		}
		if k == 0 {
			must(t, tb.reattach(got.Attachment, count))
		} else {
			if err := tb.reattach(got.Attachment, killAt(k-1)); !errors.Is(err, attach.ErrKilled) {
				t.Fatalf("not killed at point %d of %d: %v", k-1, points, err)
			}
			tb.repair()
			all := tb.list()
			if len(all) != 1 {
				t.Fatalf("killed at point %d: the attachment is no longer stored: %+v", k-1, all)
			}
			if all[0].State != attach.Attached {
				must(t, tb.reattach(all[0].Attachment, nil))
			}
		}
		if all := tb.list(); len(all) != 1 || all[0].State != attach.Attached || !tb.hasLine("192.0.2.10/24") {
			t.Fatalf("attached again: %+v", all)
		}
		must(t, tb.detach("eth0", nil))
		tb.unchanged(before, "detached")
	}
	if k < 10 {
		t.Errorf("the hook was called at only %d points", k)
	}
}

// TestReattachDetached checks that Reattach refuses an attachment that has been detached,
// or replaced by another.
func TestReattachDetached(t *testing.T) {
	needKinds(t, "bridge")
	tb := newTestbed(t)
	spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Keep: true}
	got, err := tb.attach(spec, nil)
	must(t, err)
	must(t, tb.detach("eth0", nil))
	before := tb.snapshot()
	if err := tb.reattach(got.Attachment, nil); !errors.Is(err, attach.ErrNotAttached) {
		t.Errorf("detached: %v", err)
	}
	tb.unchanged(before, "refused")
	spec.Addresses = prefixes("192.0.2.11/24")
	other, err := tb.attach(spec, nil)
	must(t, err)
	must(t, handle(t, tb.web).LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: tb.list()[0].Index}}))
	before = tb.snapshot()
	if err := tb.reattach(got.Attachment, nil); !errors.Is(err, attach.ErrNotAttached) {
		t.Errorf("replaced: %v", err)
	}
	tb.unchanged(before, "refused")
	must(t, tb.reattach(other.Attachment, nil))
}

// TestReattachOtherContainer checks that Reattach refuses a container of another user
// that has the name now. Attach refuses a container with the host's network.
func TestReattachOtherContainer(t *testing.T) {
	needKinds(t, "bridge")
	tb := newTestbed(t)
	spec := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Keep: true}
	got, err := tb.attach(spec, nil)
	must(t, err)
	must(t, handle(t, tb.web).LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: tb.list()[0].Index}}))
	before := tb.snapshot()
	tb.container.OwnerUID = 1500
	if err := tb.reattach(got.Attachment, nil); !errors.Is(err, attach.ErrContainerGone) {
		t.Errorf("container of another user: %v", err)
	}
	tb.unchanged(before, "refused")
	tb.container.OwnerUID, tb.container.HostNetwork = 0, true
	var bad *attach.SpecError
	if _, err := tb.attach(spec, nil); !errors.As(err, &bad) || bad.Param != "CONTAINER" {
		t.Errorf("container with the host's network: %v", err)
	}
	tb.unchanged(before, "refused")
}

// TestAltNames checks that a device comes back with its own alternative names, although
// the container has given it the name of a link of the host, which would prevent its
// return, and one that the host would otherwise get.
func TestAltNames(t *testing.T) {
	tb := newTestbed(t)
	host := handle(t, tb.host)
	nic, err := host.LinkByName("nic")
	must(t, err)
	must(t, host.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br-host"}}))
	must(t, host.LinkAddAltName(nic, "uplink"))
	tb.repair()
	before := tb.snapshot()
	_, err = tb.attach(attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7"}, nil)
	must(t, err)
	inside := handle(t, tb.web)
	moved, err := inside.LinkByName("eth7")
	must(t, err)
	must(t, inside.LinkAddAltName(moved, "br-host"))
	must(t, inside.LinkAddAltName(moved, "docker0"))
	must(t, tb.detach("eth7", nil))
	tb.unchanged(before, "detached")
	nic, err = host.LinkByName("nic")
	must(t, err)
	if got := nic.Attrs().AltNames; !slices.Equal(got, []string{"uplink"}) {
		t.Errorf("alternative names: %q", got)
	}
}

// TestMovedAway checks the note about a device or a link that the container has moved to
// another namespace, where it can't be reached.
func TestMovedAway(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	nested := networktest.NewNS(t, "nested")
	for name, spec := range map[string]attach.Spec{
		"a device": {Kind: "phys", Parent: "nic", Name: "eth0"},
		"a link":   {Kind: "macvlan", Parent: "nic", Name: "eth0", Addresses: prefixes("192.0.2.10/24")},
	} {
		_, err := tb.attach(spec, nil)
		must(t, err)
		inside := handle(t, tb.web)
		l, err := inside.LinkByName("eth0")
		must(t, err)
		must(t, inside.LinkSetNsFd(l, nested.Fd()))
		notes, err := tb.detachNotes()
		if err != nil || !strings.Contains(strings.Join(notes, "\n"), "another network namespace") {
			t.Errorf("%s: %q, %v", name, notes, err)
		}
		l, err = handle(t, nested).LinkByName("eth0")
		must(t, err)
		if spec.Kind == "phys" {
			must(t, handle(t, nested).LinkSetName(l, "nic"))
			must(t, handle(t, nested).LinkSetNsFd(l, tb.host.Fd()))
		} else {
			must(t, handle(t, nested).LinkDel(l))
		}
	}
}

// TestRouteNotRestorable detaches after the container has made it impossible to restore
// its route: that results in a note.
func TestRouteNotRestorable(t *testing.T) {
	needKinds(t, "bridge")
	tb := newTestbed(t)
	h := handle(t, tb.web)
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "own0"}, PeerName: "own1"}))
	own, err := h.LinkByName("own0")
	must(t, err)
	must(t, h.LinkSetUp(own))
	for _, a := range []string{"203.0.113.2/24", "203.0.113.99/24"} {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		must(t, h.AddrAdd(own, addr))
	}
	must(t, h.RouteAdd(&netlink.Route{LinkIndex: own.Attrs().Index, Gw: net.IPv4(203, 0, 113, 1), Src: net.IPv4(203, 0, 113, 99)}))
	_, err = tb.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Gateways: addrs("192.0.2.1")}, nil)
	must(t, err)
	addr, err := netlink.ParseAddr("203.0.113.99/24")
	must(t, err)
	must(t, h.AddrDel(own, addr))
	notes, err := tb.detachNotes()
	if err != nil || !strings.Contains(strings.Join(notes, "\n"), "can't be restored") {
		t.Errorf("%q, %v", notes, err)
	}
}

// TestDetachDisguisedLink detaches a link whose name and Ethernet address the container
// has changed.
func TestDetachDisguisedLink(t *testing.T) {
	for _, spec := range []attach.Spec{
		{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")},
		{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")},
		{Kind: "vlan", Parent: "nic", VLAN: 7},
	} {
		t.Run(spec.Kind, func(t *testing.T) {
			needKinds(t, spec.Kind)
			tb := newTestbed(t)
			tb.repair()
			before := tb.snapshot()
			_, err := tb.attach(spec, nil)
			must(t, err)
			h := handle(t, tb.web)
			l, err := h.LinkByName("eth0")
			must(t, err)
			must(t, h.LinkSetDown(l))
			must(t, h.LinkSetName(l, "mine"))
			must(t, h.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 0x66}))
			if notes, err := tb.detachNotes(); err != nil {
				t.Errorf("%q, %v", notes, err)
			}
			tb.unchanged(before, "detached")
		})
	}
}

// TestCanReturn checks which containers can come back: not those that are named by a PID,
// or by a path below /proc. Keep also refuses a path that others can change.
func TestCanReturn(t *testing.T) {
	for c, want := range map[attach.Container]bool{
		{Engine: "docker", Name: "web"}: true, {Engine: "netns", Name: "blue"}: true, {Engine: "path", Path: "/run/netns/blue"}: true,
		{Engine: "pid", Name: "4242"}: false, {Engine: "path", Path: "/proc/4242/ns/net"}: false, {Engine: "path", Path: "/proc/4242/fd/3"}: false,
		{Engine: "path", Path: "/run/../proc/4242/ns/net"}: false,
	} {
		if got := c.CanReturn(); got != want {
			t.Errorf("%+v: %t", c, got)
		}
	}
	tb := newTestbed(t)
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	must(t, os.Symlink(tb.container.Path, filepath.Join(dir, "web")))
	tb.container.Engine, tb.container.Path = "path", filepath.Join(dir, "web")
	var bad *attach.SpecError
	if _, err := tb.attach(attach.Spec{Kind: "phys", Parent: "nic", Keep: true}, nil); !errors.As(err, &bad) || bad.Param != "keep" {
		t.Errorf("keep with a path that others can change: %v", err)
	}
	_, err := tb.attach(attach.Spec{Kind: "phys", Parent: "nic"}, nil)
	must(t, err)
	must(t, tb.detach("eth0", nil))
}

// TestDetachReusedPID checks that a PID that another process has by now does not name the
// container that had it.
func TestDetachReusedPID(t *testing.T) {
	needKinds(t, "bridge")
	tb := newTestbed(t)
	tb.container.PID = 4242
	_, err := tb.attach(attach.Spec{Kind: "bridge", Parent: "br0"}, nil)
	must(t, err)
	other := networktest.NewNS(t, "other")
	number := func(ns *netns.NS) attach.Config {
		return attach.Config{Store: tb.store, Find: func(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
			own, err := netns.Open(ns.Path())
			return attach.Container{Ref: ref, Engine: "pid", Name: ref, PID: 4242, Path: ns.Path()}, own, err
		}}
	}
	must(t, tb.onHost(func() error {
		if a, _, err := attach.Detach(t.Context(), number(other), "4242", ""); !errors.Is(err, attach.ErrNotAttached) {
			t.Errorf("another process: %+v, %v", a, err)
		}
		_, _, err := attach.Detach(t.Context(), number(tb.web), "4242", "")
		return err
	}))
}
