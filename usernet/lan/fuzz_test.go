package lan

import (
	"net/netip"
	"testing"

	"cleat/packet"
)

// FuzzARP: an answer is a whole frame and resolves no address of the guest's.
func FuzzARP(f *testing.F) {
	f.Add(arp(arpRequest, guestMAC, "192.0.2.2", "192.0.2.1"))
	f.Add(arp(arpRequest, guestMAC, "0.0.0.0", "192.0.2.2"))
	l := newLAN(f)
	f.Fuzz(func(t *testing.T, request []byte) {
		b := make([]byte, AnswerBytes)
		n := l.ARP(b, request)
		if n != 0 && n != packet.EthernetBytes+arpBytes {
			t.Fatalf("answer of %d bytes", n)
		}
		if n > 0 && netip.AddrFrom4([4]byte(b[packet.EthernetBytes+arpSenderIP:])) == guest4 {
			t.Error("the guest's own address is resolved")
		}
	})
}

// FuzzIP: no packet makes the LAN panic, and every answer is one that a guest's kernel takes.
func FuzzIP(f *testing.F) {
	add := func(src, dst netip.Addr, proto packet.Protocol, payload []byte) {
		b := make([]byte, packet.IPBytes(src), packet.IPBytes(src)+len(payload))
		packet.PutIP(b, src, dst, proto, 0, len(payload))
		if src.Is6() {
			b[7] = maxHops
		}
		f.Add(append(b, payload...))
	}
	add(guestLocal, gateway6, packet.ICMPv6, solicitation(neighbourSolicitation, gateway6))
	add(guestLocal, allRouters, packet.ICMPv6, solicitation(RouterSolicitation, netip.Addr{}))
	add(nobody4, everybody4, packet.UDP, discover(f))
	add(guestLocal, allServers, packet.UDP, solicit(f))
	l := newLAN(f, func(c *Config) {
		c.Search, c.FQDN, c.Hostname, c.DNS = []string{"example.com"}, "guest.example.com", "guest", []netip.Addr{gateway4, gateway6}
	})
	f.Fuzz(func(t *testing.T, request []byte) {
		var ip packet.IP
		if packet.ParseIP(request, &ip) != nil || !Concerns(&ip) {
			return
		}
		b := make([]byte, AnswerBytes)
		parse(t, b[:l.IP(b, guestMAC, &ip)])
	})
}
