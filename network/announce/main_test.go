package announce_test

import (
	"net/netip"
	"os"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/network/segment/segmenttest"

	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// addrs are the addresses of one machine.
type addrs struct{ v4, v6 netip.Prefix }

func (a addrs) each(f func(netip.Prefix)) { f(a.v4); f(a.v6) }

func address(n string) addrs {
	return addrs{netip.MustParsePrefix("192.0.2." + n + "/24"), netip.MustParsePrefix("2001:db8::" + n + "/64")}
}

// remember adds a neighbour entry as if the link had learned it.
func remember(t *testing.T, l *link.Link, addr netip.Addr, mac link.MAC) {
	t.Helper()
	h, err := link.Handle(l.NS())
	segmenttest.Must(t, err)
	defer h.Close()
	segmenttest.Must(t, h.NeighSet(&netlink.Neigh{LinkIndex: l.Index(), IP: addr.AsSlice(), State: netlink.NUD_STALE, HardwareAddr: mac[:]}))
}
