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

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rooted gives the container a process with files of its own, and returns its resolv.conf.
func (w *world) rooted(had string) (conf string) {
	w.t.Helper()
	root := w.t.TempDir()
	conf = filepath.Join(root, "etc", "resolv.conf")
	must(w.t, os.Mkdir(filepath.Dir(conf), 0o755))
	must(w.t, os.WriteFile(conf, []byte(had), 0o644))
	w.container.PID = startRooted(w.t, w.web, root)
	w.container.Path = fmt.Sprintf("/proc/%d/ns/net", w.container.PID)
	return conf
}

// fileIs demands what is in a file.
func fileIs(t *testing.T, when, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s %s has %q, %v; want %q", when, filepath.Base(path), got, err, want)
	}
}

// cutOff has the container know no way to routers on its link.
func (w *world) cutOff() (putBack func()) {
	w.t.Helper()
	h := handle(w.t, w.web)
	to := netip.MustParsePrefix("198.51.100.0/24")
	all, err := h.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(24, 32)}}, netlink.RT_FILTER_DST)
	must(w.t, err)
	if len(all) != 1 {
		w.t.Fatalf("routes to %s: %v", to, all)
	}
	must(w.t, h.RouteDel(&all[0]))
	return func() { must(w.t, h.RouteAdd(&all[0])) }
}

func withDNS(server byte) dhcpv4.Modifier { return dhcpv4.WithDNS(net.IPv4(198, 51, 100, server)) }

// The name servers of a renewed lease take the place of the others, wherever a keeper is
// killed, and the container's own come back at the end.
func TestExtendDNS(t *testing.T) {
	need(t, "macvlan")
	const had = "search example.org\nnameserver 192.0.2.1\n"
	w := newWorld(t)
	conf := w.rooted(had)
	s := w.leases(time.Hour)
	for k, whole := 0, false; !whole; k++ {
		s.do(func() { s.options = []dhcpv4.Modifier{withDNS(53)} })
		got, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
		must(t, err)
		fileIs(t, "attached:", conf, "search example.org\nnameserver 198.51.100.53\n")
		s.do(func() { s.options = []dhcpv4.Modifier{withDNS(54)} })
		w.due(got.Attachment.ID)
		e, err := w.extend(got.Attachment.ID, stopAt(k))
		switch whole = err == nil; {
		case whole && !strings.Contains(e.Done, "with new name servers"):
			t.Errorf("extended: %+v", e)
		case whole:
			fileIs(t, "extended:", conf, "search example.org\nnameserver 198.51.100.54\n")
			if k < 4 {
				t.Errorf("only %d points", k)
			}
		case !errors.Is(err, attach.ErrKilled):
			t.Errorf("not stopped at point %d: %v", k, err)
		case k%2 == 0: // the next keeper goes on
			_, err := w.extend(got.Attachment.ID, nil)
			must(t, err)
			fileIs(t, fmt.Sprintf("after point %d:", k), conf, "search example.org\nnameserver 198.51.100.54\n")
		}
		must(t, w.detach("eth0", nil))
		fileIs(t, "detached:", conf, had)
	}
}

// What a renewed lease says and can't be set is kept, and set when it can be: also after
// another renewal, and by whom somebody killed.
func TestExtendUnset(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	const had = "nameserver 192.0.2.1\n"
	conf := w.rooted(had)
	s := w.leases(time.Hour)
	w.repair()
	before := w.snapshot()
	got, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true}, nil)
	must(t, err)
	id := got.Attachment.ID

	putBack := w.cutOff() // and resolv.conf is no file
	must(t, os.Rename(conf, conf+".away"))
	must(t, os.Mkdir(conf, 0o755))
	s.do(func() {
		s.options = []dhcpv4.Modifier{dhcpv4.WithRouter(net.IPv4(198, 51, 100, 3)), withDNS(53),
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{4, 0xb0}))}
	})
	failed := func(when string, e attach.LeaseReport, err error) {
		t.Helper()
		if err == nil || !e.Incomplete || e.Next <= 0 || !strings.Contains(err.Error(), "route 0.0.0.0/0") || !strings.Contains(err.Error(), "name servers") {
			t.Errorf("%s: %+v, %v", when, e, err)
		}
		w.wants(when, []string{"mtu 1200", "via 198.51.100.2"}, []string{"via 198.51.100.3"})
	}
	w.due(id)
	e, err := w.extend(id, nil)
	failed("renewed", e, err)
	if !strings.HasPrefix(e.Done, "renewed the lease") {
		t.Errorf("renewed: %+v", e)
	}
	e, err = w.extend(id, nil)
	failed("tried again", e, err)
	w.due(id)
	e, err = w.extend(id, nil)
	failed("renewed again", e, err)

	putBack()
	must(t, os.Remove(conf))
	must(t, os.Rename(conf+".away", conf))
	k := 0
	for ; ; k++ {
		if e, err = w.extend(id, stopAt(k)); !errors.Is(err, attach.ErrKilled) {
			break
		}
	}
	if err != nil || e.Incomplete || k < 4 {
		t.Errorf("after %d points: %+v, %v", k, e, err)
	}
	w.wants("set", []string{"mtu 1200", "via 198.51.100.3"}, []string{"via 198.51.100.2"})
	fileIs(t, "set:", conf, "nameserver 198.51.100.53\n")
	if e, err := w.extend(id, nil); err != nil || e.Done != "" || e.Incomplete {
		t.Errorf("with all set: %+v, %v", e, err)
	}
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
	fileIs(t, "detached:", conf, had)
}

// What is unset of a lease is only tried as long as the server still says it.
func TestExtendUnsetNoMore(t *testing.T) {
	w, s, before, id := leased(t)
	putBack := w.cutOff()
	s.do(func() { s.options = []dhcpv4.Modifier{dhcpv4.WithRouter(net.IPv4(198, 51, 100, 3))} })
	w.due(id)
	if e, err := w.extend(id, nil); err == nil || !e.Incomplete {
		t.Errorf("renewed: %+v, %v", e, err)
	}
	s.do(func() { s.options = nil })
	w.due(id)
	if e, err := w.extend(id, nil); err != nil || e.Incomplete {
		t.Errorf("renewed as before: %+v, %v", e, err)
	}
	putBack()
	w.wants("as before", []string{"via 198.51.100.2"}, []string{"via 198.51.100.3"})
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")
}

// The host reaches a leased address by the shim, also when the lease is another one, and
// has no route to one that is over; wherever any of it is killed.
func TestShimLease(t *testing.T) {
	t.Parallel() // it waits most of the time
	w, s, before := leasing(t)
	want := attach.Spec{Kind: "macvlan", Parent: "nic", DHCP: true, HostShim: true}
	routed := func(when string, are, not []string) {
		t.Helper()
		text := strings.Join(lookInto(t, w.host), "\n")
		for _, a := range are {
			if !strings.Contains(text, "route "+a+"/32 via <nil> dev shim-nic src 198.51.100.1 ") {
				t.Errorf("%s: no route to %s: %s", when, a, text)
			}
		}
		for _, a := range not {
			if strings.Contains(text, "route "+a+"/32 ") && strings.Contains(text, "route "+a+"/32 via <nil> dev shim-nic") {
				t.Errorf("%s: a route to %s: %s", when, a, text)
			}
		}
	}
	reached := func(address string) {
		t.Helper()
		server := labtest.Serve(t, w.web, net.JoinHostPort(address, "0"), labtest.Reply("hello"))
		must(t, w.host.Do(func() error {
			c, err := net.DialTimeout("tcp", server.String(), 5*time.Second)
			if err == nil {
				c.Close()
			}
			return err
		}))
	}
	got, err := w.attach(want, nil)
	must(t, err)
	routed("attached", []string{"198.51.100.7"}, nil)
	reached("198.51.100.7")
	s.do(func() { s.forbids, s.gives = true, net.IPv4(198, 51, 100, 8) })
	w.due(got.Attachment.ID)
	k := 0
	for ; ; k++ {
		if _, err = w.extend(got.Attachment.ID, stopAt(k)); !errors.Is(err, attach.ErrKilled) {
			break
		}
		if k%2 == 1 { // as it would not be before the lease is over once more
			w.due(got.Attachment.ID)
		}
	}
	must(t, err)
	routed("another lease", []string{"198.51.100.8"}, []string{"198.51.100.7"})
	reached("198.51.100.8")

	// Somebody else's route is in the way, and goes.
	nic := find(t, w.host, "nic")
	h := handle(t, w.host)
	taken := &netlink.Route{LinkIndex: nic.Index(), Dst: &net.IPNet{IP: net.IPv4(198, 51, 100, 9), Mask: net.CIDRMask(32, 32)}, Scope: netlink.SCOPE_LINK}
	must(t, h.RouteAdd(taken))
	s.do(func() { s.gives = net.IPv4(198, 51, 100, 9) })
	w.due(got.Attachment.ID)
	if e, err := w.extend(got.Attachment.ID, nil); err == nil || !e.Incomplete || !e.NewAddress {
		t.Errorf("the route is taken: %+v, %v", e, err)
	}
	w.wants("the route is taken", []string{"198.51.100.9/24"}, nil)
	must(t, h.RouteDel(taken))
	if e, err := w.extend(got.Attachment.ID, nil); err != nil || e.Incomplete || e.Done != "applied pending changes of the lease" {
		t.Errorf("the route is free: %+v, %v", e, err)
	}
	routed("set later", []string{"198.51.100.9"}, []string{"198.51.100.8"})
	s.do(func() { s.forbids, s.gives = false, nil })
	must(t, w.detach("eth0", nil))
	w.unchanged(before, "detached")

	for k := 8; ; k++ { // what comes before, TestAllOrNothing tries
		_, err := w.attach(want, stopAt(k))
		if err == nil {
			break
		}
		w.repair()
		w.unchanged(before, fmt.Sprintf("killed at point %d", k))
	}
	must(t, w.detach("eth0", nil))
	w.stopDuringDetach(want, before, func() {})
}

// A lease that somebody else has now has its route kept.
func TestShimLeaseMoved(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	s := w.leases(time.Hour)
	first, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Name: "lan0", DHCP: true, HostShim: true}, nil)
	must(t, err)
	s.do(func() { s.forbids, s.gives = true, net.IPv4(198, 51, 100, 8) })
	w.due(first.Attachment.ID)
	_, err = w.extend(first.Attachment.ID, nil)
	must(t, err)
	s.do(func() { s.forbids, s.gives = false, nil })
	_, err = w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Name: "lan1", DHCP: true, HostShim: true}, nil)
	must(t, err)
	must(t, w.detach("lan0", nil))
	if text := strings.Join(lookInto(t, w.host), "\n"); !strings.Contains(text, "route 198.51.100.7/32 ") || strings.Contains(text, "route 198.51.100.8/32 ") {
		t.Errorf("the host has %s", text)
	}
	must(t, w.detach("lan1", nil))
}

// A shim is for an address: given, or leased.
func TestShimWantsAddress(t *testing.T) {
	for _, w := range []attach.Spec{{DHCP: true}, {Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")}}, {}} {
		w.Kind, w.Parent, w.HostShim = "macvlan", "nic", true
		if err := w.Validate(); (err == nil) != (w.DHCP || len(w.Addresses) > 0) {
			t.Errorf("%+v: %v", w, err)
		}
	}
}

// A container may have put anything in the place of its resolv.conf, and another process may
// have the number of its first one by now.
func TestHostileResolvConf(t *testing.T) {
	for name, put := range map[string]func(w *world, conf string) error{
		"a FIFO": func(w *world, conf string) error {
			return errors.Join(os.Remove(conf), unix.Mkfifo(conf, 0o600))
		},
		"a link to a FIFO": func(w *world, conf string) error {
			return errors.Join(os.Remove(conf), unix.Mkfifo(conf+".fifo", 0o600), os.Symlink("resolv.conf.fifo", conf))
		},
		"more than a machine's memory": func(w *world, conf string) error { return os.Truncate(conf, 100<<20) },
		"another process's": func(w *world, conf string) error {
			root := w.t.TempDir()
			w.container.PID = startRooted(w.t, newNS(w.t, "other"), root)
			return os.Mkdir(filepath.Join(root, "etc"), 0o755)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			must(t, put(w, w.rooted("")))
			before := w.snapshot()
			attached := make(chan error, 1)
			go func() {
				_, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DNS: addrs("192.0.2.53")}, nil)
				attached <- err
			}()
			select {
			case err := <-attached:
				if err == nil || !strings.Contains(err.Error(), "name servers") {
					t.Errorf("attached: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("attaching waits")
			}
			w.unchanged(before, "refused")
		})
	}
}

// What a container does to its resolv.conf meanwhile keeps nobody from detaching.
func TestHostileResolvConfAtDetach(t *testing.T) {
	w := newWorld(t)
	conf := w.rooted("nameserver 192.0.2.1\n")
	before := w.snapshot()
	_, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", DNS: addrs("192.0.2.53")}, nil)
	must(t, err)
	must(t, errors.Join(os.Remove(conf), unix.Mkfifo(conf, 0o600)))
	detached := make(chan error, 1)
	var notes []string
	go func() {
		var err error
		notes, err = w.detachNotes()
		detached <- err
	}()
	select {
	case err := <-detached:
		if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "name servers can't be restored") {
			t.Errorf("detached: %q, %v", notes, err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("detaching waits")
	}
	w.unchanged(before, "detached")
}
