package link_test

import (
	"testing"

	"cleat/link"
)

// A WireGuard device that is brought up turns send_redirects off for its whole
// namespace (wg_open, drivers/net/wireguard/device.c), and removing the device does not
// restore the sysctl. The conformance suite turns it off beforehand.
func TestAssumeWireGuardStopsRedirects(t *testing.T) {
	requireKind(t, "wireguard")
	ns := newNS(t, "a")
	sysctl(t, ns, sendRedirects, "1")
	l := create(t, ns, link.WireGuardSpec{Attrs: attrs("wg0")}, nil)
	must(t, l.Close())
	if got := readSysctl(t, ns, sendRedirects); got != "0" {
		t.Errorf("send_redirects is %q, want 0; the conformance suite need not turn it off beforehand any more", got)
	}
}

const sendRedirects = "net/ipv4/conf/all/send_redirects"
