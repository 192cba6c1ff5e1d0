package keep_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/network/attach"
	"cleat/network/dhcp/dhcptest"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
)

// leases starts a DHCP server on br0.
func (w *fakeHost) leases() *dhcptest.Server {
	w.t.Helper()
	br0, err := link.Find(w.host, "br0")
	must(w.t, err)
	must(w.t, br0.AddAddr(dhcptest.Addr()))
	s := &dhcptest.Server{}
	must(w.t, w.host.Do(func() error {
		stop, err := s.Listen("br0")
		if err == nil {
			w.t.Cleanup(stop)
		}
		return err
	}))
	return s
}

// due makes half of a container's lease time pass.
func (w *fakeHost) due(name string) {
	w.t.Helper()
	s := w.status(name)
	all, err := filepath.Glob(w.store.Path("run", "*", "leases", s.ID+".json"))
	must(w.t, err)
	if len(all) != 1 {
		w.t.Fatalf("leases: %q", all)
	}
	text, err := os.ReadFile(all[0])
	must(w.t, err)
	stamp := func(t time.Time) string { return fmt.Sprintf(`"renew": "%s"`, t.Format(time.RFC3339Nano)) }
	other := filepath.Join(w.t.TempDir(), "lease") // a keeper may be reading the lease, so replace it
	must(w.t, os.WriteFile(other, []byte(strings.Replace(string(text), stamp(s.Lease.Renew), stamp(s.Lease.Obtained.Wall), 1)), 0o644))
	must(w.t, os.Rename(other, all[0]))
}

// Settings of a renewed lease that can't be applied are retried soon, and reported
// meanwhile.
func TestUnappliedSettings(t *testing.T) {
	t.Parallel() // it waits most of the time
	w := newFakeHost(t)
	s := w.leases()
	w.start("web", 0)
	must(t, w.host.Do(func() error {
		_, err := attach.Attach(t.Context(), w.config(), "web", attach.Spec{Kind: "bridge", Parent: "br0", DHCP: true})
		return err
	}))
	tell, _ := w.keeper(w.keep())

	// The router that the server names next can't be reached.
	h, err := link.Handle(w.running["web"])
	must(t, err)
	defer h.Close()
	all, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(192, 0, 2, 0), Mask: net.CIDRMask(24, 32)}}, netlink.RT_FILTER_DST)
	if err != nil || len(all) != 1 {
		t.Fatalf("routes: %v, %v", all, err)
	}
	must(t, h.RouteDel(&all[0]))
	s.Do(func() { s.Options = []dhcpv4.Modifier{dhcpv4.WithRouter(net.IPv4(192, 0, 2, 3))} })
	w.due("web")
	tell()
	report := func() attach.KeeperReport {
		if r := w.status("web").Keeper; r != nil {
			return *r
		}
		return attach.KeeperReport{}
	}
	w.eventually("it is retried and reported", 10*time.Second, func() bool {
		r := report()
		return r.Failures >= 3 && strings.Contains(r.Error, "route 0.0.0.0/0") && time.Until(r.Next) < time.Minute
	})
	must(t, h.RouteAdd(&all[0]))
	w.eventually("it is applied", 10*time.Second, func() bool {
		r := report()
		return r.Error == "" && r.Action == "applied pending changes of the lease"
	})
	if l := w.status("web").Lease; l == nil || len(l.Routes) != 1 || l.Routes[0].Via != netip.MustParseAddr("192.0.2.3") {
		t.Errorf("the lease is %+v", l)
	}
}
