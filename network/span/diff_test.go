package span

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"cleat/link"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// TestPeerFor checks what is changed about a peer.
func TestPeerFor(t *testing.T) {
	block, other := netip.MustParsePrefix("10.64.1.0/26"), netip.MustParsePrefix("2001:db8:64::/112")
	h := Host{Address: netip.MustParseAddr("192.0.2.2"), Port: 7791, Keys: [Slots]link.WireGuardPublic{{}, {7}}, Blocks: []Block{{Prefix: block}, {Prefix: other}}}
	have := func(change func(*wgtypes.Peer)) wgtypes.Peer {
		p := wgtypes.Peer{PublicKey: wgtypes.Key{7}, Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 7792},
			PersistentKeepaliveInterval: keepalive, AllowedIPs: []net.IPNet{netOf(block), netOf(other)}}
		change(&p)
		return p
	}
	for _, c := range []struct {
		name     string
		have     wgtypes.Peer
		differs  bool
		endpoint bool
		replaces bool
		allowed  []string
	}{
		{"new", wgtypes.Peer{}, true, true, false, []string{block.String(), other.String()}},
		{"as wanted", have(func(*wgtypes.Peer) {}), false, false, false, nil},
		{"in another order", have(func(p *wgtypes.Peer) { slices.Reverse(p.AllowedIPs) }), false, false, false, nil},
		{"elsewhere", have(func(p *wgtypes.Peer) { p.Endpoint.Port = 9 }), true, true, false, nil},
		{"no keepalives", have(func(p *wgtypes.Peer) { p.PersistentKeepaliveInterval = time.Hour }), true, false, false, nil},
		{"a block more is wanted", have(func(p *wgtypes.Peer) { p.AllowedIPs = p.AllowedIPs[:1] }), true, false, false, []string{other.String()}},
		{"a block less is wanted", have(func(p *wgtypes.Peer) {
			p.AllowedIPs = append(p.AllowedIPs, netOf(netip.MustParsePrefix("10.64.9.0/26")))
		}), true, false, true, []string{block.String(), other.String()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, differs := peerFor(h, 1, c.have)
			var allowed []string
			for _, n := range p.AllowedIPs {
				allowed = append(allowed, n.String())
			}
			if differs != c.differs || (p.Endpoint != nil) != c.endpoint || p.ReplaceAllowedIPs != c.replaces || !slices.Equal(allowed, c.allowed) {
				t.Errorf("differs %v: %+v, %v", differs, p, allowed)
			}
			if p.Endpoint != nil && p.Endpoint.String() != "192.0.2.2:7792" {
				t.Errorf("endpoint %s", p.Endpoint)
			}
		})
	}
}

// TestSlot checks by which slot packets go.
func TestSlot(t *testing.T) {
	none, configured, fresh := session{}, session{configured: true}, session{configured: true, fresh: true}
	for _, c := range []struct {
		name             string
		preferred, other session
		want             int // relative to the preferred one; -1: none
	}{
		{"both have sessions", fresh, fresh, 0},
		{"none has one yet", configured, configured, 0},
		{"only the other one has", configured, fresh, 1},
		{"only the preferred one has", fresh, configured, 0},
		{"no key for the preferred one", none, configured, 1},
		{"no keys", none, none, -1},
	} {
		for preferred := range Slots {
			a := netip.MustParseAddr("192.0.2.2")
			s := &syncer{config: Config{WireGuard: WireGuard{Slot: preferred}}}
			s.sessions[preferred], s.sessions[1-preferred] = map[netip.Addr]session{a: c.preferred}, map[netip.Addr]session{a: c.other}
			got, ok := s.slot(Host{Address: a})
			if ok != (c.want >= 0) || ok && got != (preferred+c.want)%Slots {
				t.Errorf("%s: %d, %v", c.name, got, ok)
			}
		}
	}
}

// TestEncap checks that encapsulations are read as they are written, and that others are not mistaken for one.
func TestEncap(t *testing.T) {
	to := netip.MustParsePrefix("10.64.1.0/26")
	for _, want := range []encap{
		{7790, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
		{1, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")},
	} {
		b, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		head := nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: 26, Table: unix.RT_TABLE_MAIN, Protocol: Protocol}}
		message := head.Serialize()
		for _, a := range []*nl.RtAttr{nl.NewRtAttr(unix.RTA_DST, to.Addr().AsSlice()), nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(blockMetric)), nl.NewRtAttr(unix.RTA_ENCAP|unix.NLA_F_NESTED, b)} {
			message = append(message, a.Serialize()...)
		}
		at, got, ok := parseEncap(message)
		if !ok || got != want || at != (place{to, blockMetric}) || !got.Equal(&want) {
			t.Errorf("%s at %v, %v; want %s", &got, at, ok, &want)
		}
		for i := range message {
			parseEncap(message[:i]) // does not panic
		}
		other := slices.Clone(message)
		other[5] = unix.RTPROT_STATIC
		if _, _, ok := parseEncap(other); ok {
			t.Error("a route of another protocol")
		}
	}
}
