package dhcp_test

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cleat/internal/program"
	"cleat/link"
	"cleat/network/dhcp"
	"cleat/network/dhcp/dhcptest"
	"cleat/network/segment/segmenttest"
)

// A server of another origin grants, renews and takes back a lease.
func TestDnsmasq(t *testing.T) {
	path, err := program.Find("dnsmasq")
	if err != nil {
		t.Skip("dnsmasq is not installed (apt-get install dnsmasq-base)")
	}
	onEthernet(t, func(t *testing.T, b *segmenttest.Network, l *link.Link) {
		leases := dnsmasq(t, path, b.OutsideLink)
		at := segmenttest.At(l, b.Uplink)
		lease, err := dhcp.Acquire(t.Context(), at, dhcp.Config{
			Client: client("web"), Requested: netip.MustParseAddr("192.0.2.77"),
		})
		must(t, err)
		want := []dhcp.Route{
			{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("192.0.2.254")},
			{To: netip.MustParsePrefix("198.51.100.0/24"), Via: netip.MustParseAddr("192.0.2.253")},
		}
		if lease.Address != netip.MustParsePrefix("192.0.2.77/24") || lease.Server != dhcptest.Addr().Addr() || lease.MTU != 1400 ||
			lease.Domain != "example.org" || !slices.Equal(lease.DNS, []netip.Addr{netip.MustParseAddr("192.0.2.53")}) || !slices.Equal(lease.Routes, want) || len(lease.Notes) > 0 {
			t.Errorf("%+v", lease)
		}
		must(t, l.AddAddr(lease.Address))
		first := *lease
		must(t, dhcp.Renew(t.Context(), at, lease))
		must(t, dhcp.Rebind(t.Context(), at, lease))
		if lease.Address != first.Address || !lease.Expires.After(first.Expires) {
			t.Errorf("renewed %+v, got %+v", first, lease)
		}
		id := strings.Join(slices.Collect(func(yield func(string) bool) {
			for pair := range slices.Chunk([]byte(lease.Client.ID.String()), 2) {
				if !yield(string(pair)) {
					return
				}
			}
		}), ":")
		if text := leases(); !strings.Contains(text, " 192.0.2.77 web "+id+"\n") {
			t.Errorf("the server's leases: %s", text)
		}
		must(t, dhcp.Release(t.Context(), at, lease))
		must(t, l.Close())
		segmenttest.Eventually(t, "the lease is released at the server", func() bool { return !strings.Contains(leases(), "192.0.2.77") })
	})
}

// dnsmasq runs the server on a link. It returns a function that reads the server's file
// of leases.
func dnsmasq(t *testing.T, path string, l *link.Link) func() string {
	t.Helper()
	must(t, l.AddAddr(dhcptest.Addr()))
	dir := t.TempDir()
	file, config := filepath.Join(dir, "leases"), filepath.Join(dir, "config")
	must(t, os.WriteFile(config, nil, 0o600))
	must(t, os.WriteFile(file, nil, 0o600))
	log := &bytes.Buffer{}
	cmd := exec.Command(path, "--no-daemon", "--conf-file="+config, "--pid-file=", "--user=root", "--group=root", "--port=0",
		"--interface=eth0", "--bind-interfaces", "--no-ping", "--log-dhcp", "--dhcp-authoritative", "--dhcp-leasefile="+file,
		"--dhcp-range=192.0.2.50,192.0.2.99,255.255.255.0,2m", "--dhcp-option=option:router,192.0.2.1", "--domain=example.org",
		"--dhcp-option=option:dns-server,192.0.2.53", "--dhcp-option=option:mtu,1400",
		"--dhcp-option=option:classless-static-route,0.0.0.0/0,192.0.2.254,198.51.100.0/24,192.0.2.253")
	cmd.Stdout, cmd.Stderr = log, log
	must(t, l.NS().Start(cmd))
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("dnsmasq's output:\n%s", log)
		}
	})
	return func() string {
		b, err := os.ReadFile(file)
		must(t, err)
		return string(b)
	}
}
