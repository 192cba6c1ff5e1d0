// Package segmenttest builds a switch with machines and containers, for tests of what
// happens on a segment:
//
//	container ─ eth0 on host's eth0 ═══ switch ═══ eth0 ─ outside
//
// # Limits
//
// It needs a lab (lab.RunTests), and skips tests where there is none or where the kernel
// lacks a kind of link. No link gets IPv6 addresses by itself.
package segmenttest

import (
	"errors"
	"os"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/segment"
)

// Network is a switch to which two machines without addresses are connected.
type Network struct {
	Switch, Host, Outside *netns.NS
	Uplink, OutsideLink   *link.Link // eth0 of Host and of Outside
}

// New returns a Network that exists until the test ends.
func New(t testing.TB) *Network {
	t.Helper()
	lab.Need(t)
	b := &Network{Switch: NewNS(t, "switch"), Host: NewNS(t, "host"), Outside: NewNS(t, "outside")}
	br, err := link.Create(b.Switch, link.BridgeSpec{Attrs: link.Attrs{Name: "switch"}}, link.Target{})
	Must(t, err)
	Must(t, br.Up())
	b.Uplink, b.OutsideLink = b.Plug(t, b.Host, "host", link.MAC{}), b.Plug(t, b.Outside, "outside", link.MAC{})
	return b
}

// Plug connects a machine to a port of the switch and returns the machine's eth0. A zero
// mac means a random one.
func (b *Network) Plug(t testing.TB, ns *netns.NS, port string, mac link.MAC) *link.Link {
	t.Helper()
	l, err := link.Create(ns, link.VethSpec{Attrs: link.Attrs{Name: "eth0", MAC: mac}, Peer: link.Attrs{Name: port}}, link.Target{PeerNS: b.Switch})
	Must(t, err)
	Must(t, l.Up())
	p, err := link.Find(b.Switch, port)
	Must(t, err)
	Must(t, p.SetMaster("switch"))
	Must(t, p.Up())
	at := At(l, nil)
	at.Peer, at.PeerIndex = b.Switch, p.Index()
	f, err := segment.WaitReady(t.Context(), at) // before that the switch drops packets
	Must(t, err)
	if !f.Running {
		t.Fatalf("%s of %s does not carry packets", f.Name, ns)
	}
	return l
}

// Container creates a link on the host's eth0 in a new namespace and brings it up.
func (b *Network) Container(t testing.TB, name string, spec link.Spec) *link.Link {
	t.Helper()
	l, err := link.Create(b.Host, spec, link.Target{NS: NewNS(t, name)})
	var lack *link.Lack
	if errors.As(err, &lack) {
		t.Skip(lack)
	}
	Must(t, err)
	Must(t, l.Up())
	return l
}

// Macvlan returns a container's eth0 with an Ethernet address of its own.
func Macvlan() link.Spec {
	return link.MacvlanSpec{Attrs: link.Attrs{Name: "eth0"}, Parent: "eth0", Mode: link.MacvlanBridge}
}

// IPvlan returns a container's eth0 with the host's Ethernet address.
func IPvlan() link.Spec {
	return link.IPvlanSpec{Attrs: link.Attrs{Name: "eth0"}, Parent: "eth0", Mode: link.IPvlanL2}
}

// NewNS returns a namespace that exists until the test ends.
func NewNS(t testing.TB, name string) *netns.NS {
	t.Helper()
	ns, err := netns.New(name)
	Must(t, err)
	t.Cleanup(func() { ns.Close() })
	// IN6_ADDR_GEN_MODE_NONE (include/uapi/linux/if_link.h).
	for file, value := range map[string]string{"addr_gen_mode": "1", "accept_ra": "0"} {
		Must(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/"+file, []byte(value), 0) }))
	}
	return ns
}

// MAC returns the Ethernet address of a link.
func MAC(t testing.TB, l *link.Link) link.MAC {
	t.Helper()
	f, err := segment.Inspect(At(l, nil))
	Must(t, err)
	return f.MAC
}

// Eventually waits for a condition, up to 10 s.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Must fails the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// At returns the location of l and of its parent, which may be nil.
func At(l, parent *link.Link) segment.Link {
	at := segment.Link{NS: l.NS(), Index: l.Index()}
	if parent != nil {
		at.Parent, at.ParentIndex = parent.NS(), parent.Index()
	}
	return at
}
