package link_test

import (
	"testing"

	"cleat/link"
)

// A WireGuard device that goes up switches send_redirects off for the whole
// namespace (wg_open, drivers/net/wireguard/device.c), and nobody switches it
// on again. It is the one trace that a link of ours leaves.
func TestAssumeWireGuardStopsRedirects(t *testing.T) {
	requireKind(t, "wireguard")
	ns := newNS(t, "a")
	sysctl(t, ns, sendRedirects, "1")
	l := create(t, ns, link.WireGuardSpec{Attrs: attrs("wg0")}, nil)
	must(t, l.Close())
	if got := readSysctl(t, ns, sendRedirects); got != "0" {
		t.Errorf("send_redirects is %q: WireGuard leaves it alone now, and the conformance suite need not forgive it", got)
	}
}

const sendRedirects = "net/ipv4/conf/all/send_redirects"
