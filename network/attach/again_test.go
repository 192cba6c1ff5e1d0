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

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
)

// again attaches once more what is wanted; the container is found by its engine's name.
func (w *world) again(a *attach.Attachment, trial func() error) error {
	return w.do(func() error {
		cfg := w.config().WithHook(trial)
		find := cfg.Find
		cfg.Find = func(ctx context.Context, ref string) (attach.Container, *netns.NS, error) {
			if ref != "test:web" {
				return attach.Container{}, nil, netns.ErrNotFound
			}
			return find(ctx, "web")
		}
		_, err := attach.Reattach(w.t.Context(), cfg, a)
		return err
	})
}

func (w *world) extend(id string, trial func() error) (got attach.LeaseReport, err error) {
	err = w.do(func() error {
		got, err = attach.MaintainLease(w.t.Context(), w.config().WithHook(trial), id)
		return err
	})
	return got, err
}

// due has a lease count as one whose half is over.
func (w *world) due(id string) {
	w.t.Helper()
	all, err := filepath.Glob(filepath.Join(w.state, "run", "*", "leases", id+".json"))
	must(w.t, err)
	if len(all) != 1 {
		w.t.Fatalf("leases: %q", all)
	}
	text, err := os.ReadFile(all[0])
	must(w.t, err)
	l := w.list()[0].Lease
	old, now := l.Renew.Format(time.RFC3339Nano), l.Obtained.Wall.Format(time.RFC3339Nano)
	must(w.t, os.WriteFile(all[0], []byte(strings.Replace(string(text), `"renew": "`+old, `"renew": "`+now, 1)), 0o644))
}

func (w *world) has(what string) bool {
	return slices.ContainsFunc(lookInto(w.t, w.web), func(line string) bool { return strings.Contains(line, what) })
}

// wants tells what is and is not to be inside.
func (w *world) wants(when string, are, not []string) {
	w.t.Helper()
	for _, what := range are {
		if !w.has(what) {
			w.t.Errorf("%s: no %s inside: %q", when, what, lookInto(w.t, w.web))
		}
	}
	for _, what := range not {
		if w.has(what) {
			w.t.Errorf("%s: %s inside: %q", when, what, lookInto(w.t, w.web))
		}
	}
}

// A lease is extended when it is time. When it is over its address goes at once, and
// comes back with another lease; the link and its other addresses stay all the time.
func TestExtend(t *testing.T) {
	t.Parallel() // it waits most of the time
	need(t, "macvlan")
	w := newWorld(t)
	s := w.leases(4 * time.Second)
	got, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("2001:db8::9/64"), DHCP: true}, nil)
	must(t, err)
	id := got.Attachment.ID
	link := w.list()[0].Index
	e, err := w.extend(id, nil)
	if err != nil || e.Done != "" || e.Next <= 0 || e.Next > 2*time.Second {
		t.Errorf("extend: %+v, %v", e, err)
	}
	time.Sleep(e.Next) // by a clock that cannot be set
	if e, err = w.extend(id, nil); err != nil || e.Next <= time.Second || !strings.HasPrefix(e.Done, "renewed") {
		t.Errorf("extended: %+v, %v", e, err)
	}
	if now := w.list()[0].Lease; !now.Expires.After(got.Lease.Expires) {
		t.Errorf("extended from %s to %s", got.Lease.Expires, now.Expires)
	}

	s.do(func() { s.mute = true })
	for w.has("198.51.100.7/24") && t.Context().Err() == nil {
		if e, err = w.extend(id, nil); e.Next > 0 {
			time.Sleep(e.Next)
		}
	}
	if err == nil || e.Next != 0 {
		t.Errorf("without a server: %+v, %v", e, err)
	}
	w.wants("without a lease", []string{"2001:db8::9/64"}, []string{"198.51.100."})
	s.do(func() { s.mute, s.gives = false, net.IPv4(198, 51, 100, 8) })
	if e, err = w.extend(id, nil); err != nil || !e.NewAddress {
		t.Errorf("with a server again: %+v, %v", e, err)
	}
	w.wants("with another lease", []string{"2001:db8::9/64", "198.51.100.8/24", "via 198.51.100.2"}, []string{"198.51.100.7"})
	if all := w.list(); all[0].State != attach.Attached || all[0].Index != link || all[0].Lease.Address.Addr() != addrs("198.51.100.8")[0] {
		t.Errorf("the link is another: %+v", all)
	}
}

// What a server forbids goes, and another address comes.
func TestForbidden(t *testing.T) {
	t.Parallel()
	w, s, before, id := leased(t)
	s.do(func() { s.forbids, s.gives = true, net.IPv4(198, 51, 100, 8) })
	w.due(id)
	if e, err := w.extend(id, nil); err != nil || !e.NewAddress || !strings.Contains(e.Done, "refused by") {
		t.Errorf("forbidden: %+v, %v", e, err)
	}
	w.wants("forbidden", []string{"198.51.100.8/24", "via 198.51.100.2"}, []string{"198.51.100.7"})
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
}

// Whoever is killed while another lease is asked for leaves none that looks like one:
// the next asks again, until it is confirmed.
func TestForbiddenKilled(t *testing.T) {
	t.Parallel()
	w, s, before, id := leased(t)
	k, whole := 0, false
	for ; !whole; k++ {
		s.do(func() { s.forbids, s.gives = true, net.IPv4(198, 51, 100, byte(8+k)) })
		w.due(id)
		_, err := w.extend(id, stopAt(k))
		whole = err == nil
		s.do(func() { s.forbids = false })
		if _, err := w.extend(id, nil); err != nil {
			t.Fatalf("after it was stopped at point %d: %v", k, err)
		}
		l := w.list()[0].Lease
		w.wants(fmt.Sprintf("stopped at point %d", k), []string{l.Address.String(), "via 198.51.100.2"}, nil)
		if l.Expires.IsZero() || len(l.Routes) == 0 {
			t.Errorf("stopped at point %d: a lease that nobody has confirmed: %+v", k, l)
		}
	}
	if k < 6 {
		t.Errorf("only %d points", k)
	}
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
}

// What a renewed lease says otherwise is set, and goes with the rest, wherever the
// keeper is killed in between.
func TestExtendChanges(t *testing.T) {
	t.Parallel()
	w, s, before := leasing(t)
	more := []dhcpv4.Modifier{
		dhcpv4.WithNetmask(net.CIDRMask(25, 32)), dhcpv4.WithRouter(net.IPv4(198, 51, 100, 3)),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{4, 0xb0})),
	}
	first := func() string {
		t.Helper()
		s.do(func() { s.options = nil })
		got, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
		must(t, err)
		w.wants("at first", []string{"198.51.100.7/24", "via 198.51.100.2", "mtu 1400"}, nil)
		s.do(func() { s.options = more })
		w.due(got.Attachment.ID)
		return got.Attachment.ID
	}
	changed := func(when string) {
		t.Helper()
		w.wants(when, []string{"198.51.100.7/25", "via 198.51.100.3", "mtu 1200"}, []string{"198.51.100.7/24", "via 198.51.100.2"})
	}
	points := 0
	e, err := w.extend(first(), func() error { points++; return nil })
	if err != nil || !strings.Contains(e.Done, "routes") {
		t.Errorf("extended: %+v, %v", e, err)
	}
	changed("extended")
	s.do(func() { s.options = more[:1] }) // the first router and MTU again
	w.due("test.web.eth0")
	if _, err := w.extend("test.web.eth0", nil); err != nil {
		t.Error(err)
	}
	w.wants("as before", []string{"via 198.51.100.2", "mtu 1400"}, []string{"via 198.51.100.3"})
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
	if points < 5 {
		t.Fatalf("only %d points", points)
	}
	for k := range points {
		id := first()
		if _, err := w.extend(id, stopAt(k)); !errors.Is(err, attach.ErrKilled) {
			t.Fatalf("not stopped at point %d of %d: %v", k, points, err)
		}
		if k%2 == 0 { // the next keeper goes on
			if _, err := w.extend(id, nil); err != nil {
				t.Errorf("after point %d: %v", k, err)
			}
			changed("by the next")
		}
		must(t, w.detach("eth0", nil))
		w.unchanged(before, "killed, and detached")
	}
}

// An address that somebody removed is put back, with its routes, also those that were
// wanted besides.
func TestExtendPutsBack(t *testing.T) {
	w, _, before := leasing(t)
	route := attach.Route{To: netip.MustParsePrefix("203.0.113.0/24")}
	got, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true, Routes: []attach.Route{route}}, nil)
	must(t, err)
	before2 := lookInto(t, w.web)
	h := handle(t, w.web)
	eth0, err := h.LinkByName("eth0")
	must(t, err)
	addresses, err := h.AddrList(eth0, 2)
	must(t, err)
	must(t, h.AddrDel(eth0, &addresses[0]))
	w.wants("removed", nil, []string{"198.51.100."})
	if e, err := w.extend(got.Attachment.ID, nil); err != nil || !e.NewAddress {
		t.Errorf("put back: %+v, %v", e, err)
	}
	if now := lookInto(t, w.web); !reflect.DeepEqual(now, before2) {
		t.Errorf("put back:\n%q, before\n%q", now, before2)
	}
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
}

// Attaching again is all or nothing, too, and stays wanted wherever it is killed.
func TestAgainKilled(t *testing.T) {
	need(t, "bridge")
	w := newWorld(t)
	w.repair()
	before := w.snapshot()
	remove := func() {
		t.Helper()
		h := handle(t, w.web)
		eth0, err := h.LinkByName("eth0")
		must(t, err)
		must(t, h.LinkDel(eth0))
	}
	points, k := 0, 0
	count := func() error { points++; return nil }
	for ; k <= points; k++ {
		got, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Keep: true}, nil)
		must(t, err)
		remove()
		if all := w.list(); len(all) != 1 || all[0].State != attach.Missing {
			t.Fatalf("removed: %+v", all)
		}
		if k == 0 {
			must(t, w.again(got.Attachment, count))
		} else {
			if err := w.again(got.Attachment, stopAt(k-1)); !errors.Is(err, attach.ErrKilled) {
				t.Fatalf("not stopped at point %d of %d: %v", k-1, points, err)
			}
			w.repair()
			all := w.list()
			if len(all) != 1 {
				t.Fatalf("killed at point %d: it is not wanted any more: %+v", k-1, all)
			}
			if all[0].State != attach.Attached {
				must(t, w.again(all[0].Attachment, nil))
			}
		}
		if all := w.list(); len(all) != 1 || all[0].State != attach.Attached || !w.has("192.0.2.10/24") {
			t.Fatalf("attached again: %+v", all)
		}
		must(t, w.detach("eth0", nil))
		w.unchanged(before, "detached")
	}
	if k < 10 {
		t.Errorf("only %d points", k)
	}
}

// What was detached, or attached otherwise, is not attached again by who has not noticed.
func TestAgainUnwanted(t *testing.T) {
	need(t, "bridge")
	w := newWorld(t)
	want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Keep: true}
	got, err := w.attach(want, nil)
	must(t, err)
	must(t, w.detach("eth0", nil))
	before := w.snapshot()
	if err := w.again(got.Attachment, nil); !errors.Is(err, attach.ErrNotAttached) {
		t.Errorf("detached: %v", err)
	}
	w.unchanged(before, "refused")
	want.Addresses = prefixes("192.0.2.11/24")
	other, err := w.attach(want, nil)
	must(t, err)
	must(t, handle(t, w.web).LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: w.list()[0].Index}}))
	before = w.snapshot()
	if err := w.again(got.Attachment, nil); !errors.Is(err, attach.ErrNotAttached) {
		t.Errorf("attached otherwise: %v", err)
	}
	w.unchanged(before, "refused")
	must(t, w.again(other.Attachment, nil))
}

// Another user's container that has the name now is not what was attached. Nor is one that
// its engine gave the machine's own network, wherever this process is.
func TestNotTheContainer(t *testing.T) {
	need(t, "bridge")
	w := newWorld(t)
	want := attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Keep: true}
	got, err := w.attach(want, nil)
	must(t, err)
	must(t, handle(t, w.web).LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: w.list()[0].Index}}))
	before := w.snapshot()
	w.container.OwnerUID = 1500
	if err := w.again(got.Attachment, nil); !errors.Is(err, attach.ErrContainerGone) {
		t.Errorf("another user's: %v", err)
	}
	w.unchanged(before, "refused")
	w.container.OwnerUID, w.container.HostNetwork = 0, true
	var bad *attach.SpecError
	if _, err := w.attach(want, nil); !errors.As(err, &bad) || bad.Param != "CONTAINER" {
		t.Errorf("the machine's network: %v", err)
	}
	w.unchanged(before, "refused")
}

// A container can give a device that is its own for a while other names: those of the host's
// links, so that it can't come home, or such as would be the host's afterwards.
func TestAltNames(t *testing.T) {
	w := newWorld(t)
	host := handle(t, w.host)
	nic, err := host.LinkByName("nic")
	must(t, err)
	must(t, host.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br-host"}}))
	must(t, host.LinkAddAltName(nic, "uplink"))
	w.repair()
	before := w.snapshot()
	_, err = w.attach(attach.Spec{Kind: "phys", Parent: "nic", Name: "eth7"}, nil)
	must(t, err)
	inside := handle(t, w.web)
	moved, err := inside.LinkByName("eth7")
	must(t, err)
	must(t, inside.LinkAddAltName(moved, "br-host"))
	must(t, inside.LinkAddAltName(moved, "docker0"))
	must(t, w.detach("eth7", nil))
	w.unchanged(before, "detached")
	nic, err = host.LinkByName("nic")
	must(t, err)
	if got := nic.Attrs().AltNames; !slices.Equal(got, []string{"uplink"}) {
		t.Errorf("other names: %q", got)
	}
}

// What a container has moved to a namespace of its own is out of reach, which is said.
func TestMovedAway(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	nested := newNS(t, "nested")
	for name, want := range map[string]attach.Spec{
		"a device": {Kind: "phys", Parent: "nic", Name: "eth0"},
		"a link":   {Kind: "macvlan", Parent: "nic", Name: "eth0", Addresses: prefixes("192.0.2.10/24")},
	} {
		_, err := w.attach(want, nil)
		must(t, err)
		inside := handle(t, w.web)
		l, err := inside.LinkByName("eth0")
		must(t, err)
		must(t, inside.LinkSetNsFd(l, nested.Fd()))
		notes, err := w.detachNotes()
		if err != nil || !strings.Contains(strings.Join(notes, "\n"), "another network namespace") {
			t.Errorf("%s: %q, %v", name, notes, err)
		}
		l, err = handle(t, nested).LinkByName("eth0")
		must(t, err)
		if want.Kind == "phys" {
			must(t, handle(t, nested).LinkSetName(l, "nic"))
			must(t, handle(t, nested).LinkSetNsFd(l, w.host.Fd()))
		} else {
			must(t, handle(t, nested).LinkDel(l))
		}
	}
}

// A container that has made it impossible to put its route back keeps nobody from detaching.
func TestRouteCantComeBack(t *testing.T) {
	need(t, "bridge")
	w := newWorld(t)
	h := handle(t, w.web)
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
	_, err = w.attach(attach.Spec{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24"), Gateways: addrs("192.0.2.1")}, nil)
	must(t, err)
	addr, err := netlink.ParseAddr("203.0.113.99/24")
	must(t, err)
	must(t, h.AddrDel(own, addr))
	notes, err := w.detachNotes()
	if err != nil || !strings.Contains(strings.Join(notes, "\n"), "can't be restored") {
		t.Errorf("%q, %v", notes, err)
	}
}

// A container that gives its link another name and another Ethernet address does not keep it.
func TestDisguised(t *testing.T) {
	for _, want := range []attach.Spec{
		{Kind: "macvlan", Parent: "nic", Addresses: prefixes("192.0.2.10/24")},
		{Kind: "bridge", Parent: "br0", Addresses: prefixes("192.0.2.10/24")},
		{Kind: "vlan", Parent: "nic", VLAN: 7},
	} {
		t.Run(want.Kind, func(t *testing.T) {
			need(t, want.Kind)
			w := newWorld(t)
			w.repair()
			before := w.snapshot()
			_, err := w.attach(want, nil)
			must(t, err)
			h := handle(t, w.web)
			l, err := h.LinkByName("eth0")
			must(t, err)
			must(t, h.LinkSetDown(l))
			must(t, h.LinkSetName(l, "mine"))
			must(t, h.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 0x66}))
			if notes, err := w.detachNotes(); err != nil {
				t.Errorf("%q, %v", notes, err)
			}
			w.unchanged(before, "detached")
		})
	}
}

// What stands for another process sooner or later is nothing that comes back, and a path that
// others can change is not attached to again by itself.
func TestReturns(t *testing.T) {
	for c, want := range map[attach.Container]bool{
		{Engine: "docker", Name: "web"}: true, {Engine: "netns", Name: "blue"}: true, {Engine: "path", Path: "/run/netns/blue"}: true,
		{Engine: "pid", Name: "4242"}: false, {Engine: "path", Path: "/proc/4242/ns/net"}: false, {Engine: "path", Path: "/proc/4242/fd/3"}: false,
		{Engine: "path", Path: "/run/../proc/4242/ns/net"}: false,
	} {
		if got := c.CanReturn(); got != want {
			t.Errorf("%+v: %t", c, got)
		}
	}
	w := newWorld(t)
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	must(t, os.Symlink(w.container.Path, filepath.Join(dir, "web")))
	w.container.Engine, w.container.Path = "path", filepath.Join(dir, "web")
	var bad *attach.SpecError
	if _, err := w.attach(attach.Spec{Kind: "phys", Parent: "nic", Keep: true}, nil); !errors.As(err, &bad) || bad.Param != "keep" {
		t.Errorf("kept at a path that others can change: %v", err)
	}
	_, err := w.attach(attach.Spec{Kind: "phys", Parent: "nic"}, nil)
	must(t, err)
	must(t, w.detach("eth0", nil))
}

// A number that another process has by now does not name the container that had it.
func TestDetachOldNumber(t *testing.T) {
	need(t, "bridge")
	w := newWorld(t)
	w.container.PID = 4242
	_, err := w.attach(attach.Spec{Kind: "bridge", Parent: "br0"}, nil)
	must(t, err)
	other := newNS(t, "other")
	number := func(ns *netns.NS) attach.Config {
		return attach.Config{Store: w.store, Find: func(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
			own, err := netns.Open(ns.Path())
			return attach.Container{Ref: ref, Engine: "pid", Name: ref, PID: 4242, Path: ns.Path()}, own, err
		}}
	}
	must(t, w.do(func() error {
		if a, _, err := attach.Detach(t.Context(), number(other), "4242", ""); !errors.Is(err, attach.ErrNotAttached) {
			t.Errorf("another process: %+v, %v", a, err)
		}
		_, _, err := attach.Detach(t.Context(), number(w.web), "4242", "")
		return err
	}))
}
