package attach_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/lab/labtest"
	"cleat/network/attach"
	"cleat/network/networktest"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// useRoot gives the container a process with its own root directory, and returns the path
// of its resolv.conf.
func (tb *testbed) useRoot(had string) (conf string) {
	tb.t.Helper()
	root := tb.t.TempDir()
	conf = filepath.Join(root, "etc", "resolv.conf")
	must(tb.t, os.Mkdir(filepath.Dir(conf), 0o755))
	must(tb.t, os.WriteFile(conf, []byte(had), 0o644))
	tb.container.PID = startChrooted(tb.t, tb.web, root)
	tb.container.Path = fmt.Sprintf("/proc/%d/ns/net", tb.container.PID)
	return conf
}

// expectFile checks the content of a file.
func expectFile(t *testing.T, when, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s %s contains %q, %v; want %q", when, filepath.Base(path), got, err, want)
	}
}

// removeNetworkRoute removes the route to the link's network, so that no route by a
// router can be added.
func (tb *testbed) removeNetworkRoute() (putBack func()) {
	tb.t.Helper()
	h := handle(tb.t, tb.web)
	to := netip.MustParsePrefix("198.51.100.0/24")
	all, err := h.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}}, netlink.RT_FILTER_DST)
	must(tb.t, err)
	if len(all) != 1 {
		tb.t.Fatalf("routes to %s: %v", to, all)
	}
	must(tb.t, h.RouteDel(&all[0]))
	return func() { must(tb.t, h.RouteAdd(&all[0])) }
}

func withDNS(server byte) dhcpv4.Modifier { return dhcpv4.WithDNS(net.IPv4(198, 51, 100, server)) }

// TestMaintainLeaseDNS renews a lease with other name servers and kills that at each
// point. Detaching restores the container's own name servers.
func TestMaintainLeaseDNS(t *testing.T) {
	needKinds(t, "macvlan")
	const had = "search example.org\nnameserver 192.0.2.1\n"
	tb := newTestbed(t)
	conf := tb.useRoot(had)
	s := tb.startDHCP(time.Hour)
	for k, whole := 0, false; !whole; k++ {
		s.with(func() { s.options = []dhcpv4.Modifier{withDNS(53)} })
		got, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
		must(t, err)
		expectFile(t, "attached:", conf, "search example.org\nnameserver 198.51.100.53\n")
		s.with(func() { s.options = []dhcpv4.Modifier{withDNS(54)} })
		tb.makeDue(got.Attachment.ID)
		e, err := tb.maintain(got.Attachment.ID, killAt(k))
		switch whole = err == nil; {
		case whole && !strings.Contains(e.Done, "with new name servers"):
			t.Errorf("extended: %+v", e)
		case whole:
			expectFile(t, "extended:", conf, "search example.org\nnameserver 198.51.100.54\n")
			if k < 4 {
				t.Errorf("the hook was called at only %d points", k)
			}
		case !errors.Is(err, attach.ErrKilled):
			t.Errorf("not killed at point %d: %v", k, err)
		case k%2 == 0: // the next keeper continues
			_, err := tb.maintain(got.Attachment.ID, nil)
			must(t, err)
			expectFile(t, fmt.Sprintf("after point %d:", k), conf, "search example.org\nnameserver 198.51.100.54\n")
		}
		must(t, tb.detach("eth0", nil))
		expectFile(t, "detached:", conf, had)
	}
}

// TestMaintainLeasePending renews a lease with values that can't be applied. They stay
// pending and are applied when that becomes possible, also after another renewal and by a
// process that is killed.
func TestMaintainLeasePending(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	const had = "nameserver 192.0.2.1\n"
	conf := tb.useRoot(had)
	s := tb.startDHCP(time.Hour)
	tb.repair()
	before := tb.snapshot()
	got, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
	must(t, err)
	id := got.Attachment.ID

	putBack := tb.removeNetworkRoute() // and resolv.conf is a directory
	must(t, os.Rename(conf, conf+".away"))
	must(t, os.Mkdir(conf, 0o755))
	s.with(func() {
		s.options = []dhcpv4.Modifier{dhcpv4.WithRouter(net.IPv4(198, 51, 100, 3)), withDNS(53),
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{4, 0xb0}))}
	})
	failed := func(when string, e attach.LeaseReport, err error) {
		t.Helper()
		if err == nil || !e.Incomplete || e.Next <= 0 || !strings.Contains(err.Error(), "route 0.0.0.0/0") || !strings.Contains(err.Error(), "name servers") {
			t.Errorf("%s: %+v, %v", when, e, err)
		}
		tb.expect(when, []string{"mtu 1200", "via 198.51.100.2"}, []string{"via 198.51.100.3"})
	}
	tb.makeDue(id)
	e, err := tb.maintain(id, nil)
	failed("renewed", e, err)
	if !strings.HasPrefix(e.Done, "renewed the lease") {
		t.Errorf("renewed: %+v", e)
	}
	e, err = tb.maintain(id, nil)
	failed("tried again", e, err)
	tb.makeDue(id)
	e, err = tb.maintain(id, nil)
	failed("renewed again", e, err)

	putBack()
	must(t, os.Remove(conf))
	must(t, os.Rename(conf+".away", conf))
	k := 0
	for ; ; k++ {
		if e, err = tb.maintain(id, killAt(k)); !errors.Is(err, attach.ErrKilled) {
			break
		}
	}
	if err != nil || e.Incomplete || k < 4 {
		t.Errorf("killed at %d points: %+v, %v", k, e, err)
	}
	tb.expect("set", []string{"mtu 1200", "via 198.51.100.3"}, []string{"via 198.51.100.2"})
	expectFile(t, "set:", conf, "nameserver 198.51.100.53\n")
	if e, err := tb.maintain(id, nil); err != nil || e.Done != "" || e.Incomplete {
		t.Errorf("with all set: %+v, %v", e, err)
	}
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
	expectFile(t, "detached:", conf, had)
}

// TestMaintainLeaseWithdrawn checks that a pending value is dropped when a renewal no
// longer has it.
func TestMaintainLeaseWithdrawn(t *testing.T) {
	tb, s, before, id := withLease(t)
	putBack := tb.removeNetworkRoute()
	s.with(func() { s.options = []dhcpv4.Modifier{dhcpv4.WithRouter(net.IPv4(198, 51, 100, 3))} })
	tb.makeDue(id)
	if e, err := tb.maintain(id, nil); err == nil || !e.Incomplete {
		t.Errorf("renewed: %+v, %v", e, err)
	}
	s.with(func() { s.options = nil })
	tb.makeDue(id)
	if e, err := tb.maintain(id, nil); err != nil || e.Incomplete {
		t.Errorf("renewed without the router: %+v, %v", e, err)
	}
	putBack()
	tb.expect("renewed without the router", []string{"via 198.51.100.2"}, []string{"via 198.51.100.3"})
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")
}

// TestShimLease checks that the host reaches a leased address by the shim, also after the
// lease changes, and that the route to the old address is removed. It kills attaching,
// renewing and detaching at each point.
func TestShimLease(t *testing.T) {
	t.Parallel() // it mostly waits
	tb, s, before := withDHCP(t)
	spec := attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true, HostShim: true}
	routed := func(when string, are, not []string) {
		t.Helper()
		text := strings.Join(networktest.Netlink(t, tb.host), "\n")
		for _, a := range are {
			if !strings.Contains(text, "route "+a+"/32 via <nil> dev shim-nic src 198.51.100.1 ") {
				t.Errorf("%s: no route to %s by the shim: %s", when, a, text)
			}
		}
		for _, a := range not {
			if strings.Contains(text, "route "+a+"/32 ") && strings.Contains(text, "route "+a+"/32 via <nil> dev shim-nic") {
				t.Errorf("%s: unexpected route to %s: %s", when, a, text)
			}
		}
	}
	reached := func(address string) {
		t.Helper()
		server := labtest.Serve(t, tb.web, net.JoinHostPort(address, "0"), labtest.Reply("hello"))
		must(t, tb.host.Do(func() error {
			c, err := net.DialTimeout("tcp", server.String(), 5*time.Second)
			if err == nil {
				c.Close()
			}
			return err
		}))
	}
	got, err := tb.attach(spec, nil)
	must(t, err)
	routed("attached", []string{"198.51.100.7"}, nil)
	reached("198.51.100.7")
	s.with(func() { s.sendNAK, s.address = true, net.IPv4(198, 51, 100, 8) })
	tb.makeDue(got.Attachment.ID)
	k := 0
	for ; ; k++ {
		if _, err = tb.maintain(got.Attachment.ID, killAt(k)); !errors.Is(err, attach.ErrKilled) {
			break
		}
		if k%2 == 1 { // otherwise the lease would not be due again
			tb.makeDue(got.Attachment.ID)
		}
	}
	must(t, err)
	routed("address changed", []string{"198.51.100.8"}, []string{"198.51.100.7"})
	reached("198.51.100.8")

	// A foreign route blocks the shim's route, and is removed later.
	nic := find(t, tb.host, "nic")
	h := handle(t, tb.host)
	taken := &netlink.Route{LinkIndex: nic.Index(), Dst: &net.IPNet{IP: net.IPv4(198, 51, 100, 9), Mask: net.CIDRMask(32, 32)}, Scope: netlink.SCOPE_LINK}
	must(t, h.RouteAdd(taken))
	s.with(func() { s.address = net.IPv4(198, 51, 100, 9) })
	tb.makeDue(got.Attachment.ID)
	if e, err := tb.maintain(got.Attachment.ID, nil); err == nil || !e.Incomplete || !e.NewAddress {
		t.Errorf("blocked by a route: %+v, %v", e, err)
	}
	tb.expect("blocked by a route", []string{"198.51.100.9/24"}, nil)
	must(t, h.RouteDel(taken))
	if e, err := tb.maintain(got.Attachment.ID, nil); err != nil || e.Incomplete || e.Done != "applied pending changes of the lease" {
		t.Errorf("no longer blocked: %+v, %v", e, err)
	}
	routed("route applied later", []string{"198.51.100.9"}, []string{"198.51.100.8"})
	s.with(func() { s.sendNAK, s.address = false, nil })
	must(t, tb.detach("eth0", nil))
	tb.unchanged(before, "detached")

	for k := 8; ; k++ { // TestAllOrNothing covers the points before
		_, err := tb.attach(spec, killAt(k))
		if err == nil {
			break
		}
		tb.repair()
		tb.unchanged(before, fmt.Sprintf("killed at point %d", k))
	}
	must(t, tb.detach("eth0", nil))
	tb.killDuringDetach(spec, before, func() {})
}

// TestShimLeaseMoved detaches a link whose former address is now leased to another: the
// other's route stays.
func TestShimLeaseMoved(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	s := tb.startDHCP(time.Hour)
	first, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Name: "lan0", DHCP: true, HostShim: true}, nil)
	must(t, err)
	s.with(func() { s.sendNAK, s.address = true, net.IPv4(198, 51, 100, 8) })
	tb.makeDue(first.Attachment.ID)
	_, err = tb.maintain(first.Attachment.ID, nil)
	must(t, err)
	s.with(func() { s.sendNAK, s.address = false, nil })
	_, err = tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Name: "lan1", DHCP: true, HostShim: true}, nil)
	must(t, err)
	must(t, tb.detach("lan0", nil))
	if text := strings.Join(networktest.Netlink(t, tb.host), "\n"); !strings.Contains(text, "route 198.51.100.7/32 ") || strings.Contains(text, "route 198.51.100.8/32 ") {
		t.Errorf("routes of the host: %s", text)
	}
	must(t, tb.detach("lan1", nil))
}

// TestShimNeedsAddress checks that a shim requires an address, given or leased.
func TestShimNeedsAddress(t *testing.T) {
	for _, spec := range []attach.Spec{{DHCP: true}, {Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")}}, {}} {
		spec.Kind, spec.Parent, spec.HostShim = "macvlan", "nic", true
		if err := spec.Validate(); (err == nil) != (spec.DHCP || len(spec.Addresses) > 0) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}

// TestHostileResolvConf attaches to containers that have replaced their resolv.conf, or
// whose recorded PID belongs to another process.
func TestHostileResolvConf(t *testing.T) {
	for name, put := range map[string]func(tb *testbed, conf string) error{
		"a FIFO": func(tb *testbed, conf string) error {
			return errors.Join(os.Remove(conf), unix.Mkfifo(conf, 0o600))
		},
		"a symbolic link to a FIFO": func(tb *testbed, conf string) error {
			return errors.Join(os.Remove(conf), unix.Mkfifo(conf+".fifo", 0o600), os.Symlink("resolv.conf.fifo", conf))
		},
		"larger than memory": func(tb *testbed, conf string) error { return os.Truncate(conf, 100<<20) },
		"of another process": func(tb *testbed, conf string) error {
			root := tb.t.TempDir()
			tb.container.PID = startChrooted(tb.t, networktest.NewNS(tb.t, "other"), root)
			return os.Mkdir(filepath.Join(root, "etc"), 0o755)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tb := newTestbed(t)
			must(t, put(tb, tb.useRoot("")))
			before := tb.snapshot()
			attached := make(chan error, 1)
			go func() {
				_, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DNS: addrs("192.0.2.53")}, nil)
				attached <- err
			}()
			select {
			case err := <-attached:
				if err == nil || !strings.Contains(err.Error(), "name servers") {
					t.Errorf("attached: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("attaching blocks")
			}
			tb.unchanged(before, "refused")
		})
	}
}

// TestHostileResolvConfAtDetach checks that a replaced resolv.conf does not prevent
// detaching.
func TestHostileResolvConfAtDetach(t *testing.T) {
	tb := newTestbed(t)
	conf := tb.useRoot("nameserver 192.0.2.1\n")
	before := tb.snapshot()
	_, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DNS: addrs("192.0.2.53")}, nil)
	must(t, err)
	must(t, errors.Join(os.Remove(conf), unix.Mkfifo(conf, 0o600)))
	detached := make(chan error, 1)
	var notes []string
	go func() {
		var err error
		notes, err = tb.detachNotes()
		detached <- err
	}()
	select {
	case err := <-detached:
		if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "name servers can't be restored") {
			t.Errorf("detached: %q, %v", notes, err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("detaching blocks")
	}
	tb.unchanged(before, "detached")
}
