package usernet

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"cleat/packet"
	"cleat/usernet/guesttest"
)

func TestWantsDF(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ip    packet.IP
		bytes int
		want  bool
	}{
		{"IPv4 without DF", packet.IP{Src: rigGuest4}, 1000, false},
		{"IPv4, Ethernet's MTU", packet.IP{Src: rigGuest4, DontFragment: true, ID: 7}, 1500, true},
		{"IPv4, longer: DF as any socket sets it", packet.IP{Src: rigGuest4, DontFragment: true, ID: 7}, 1501, false},
		{"IPv4, longer, ID 0: a socket that asked for DF", packet.IP{Src: rigGuest4, DontFragment: true}, 1501, true},
		{"IPv6, Ethernet's MTU", packet.IP{Src: rigGuest6, DontFragment: true}, 1500, true},
		{"IPv6, longer", packet.IP{Src: rigGuest6, DontFragment: true}, 1501, false},
	} {
		if got := wantsDF(&tt.ip, tt.bytes); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

// df returns the DF setting of the only host socket for datagrams.
func (r *rig) df() (df, mayFragment bool) {
	r.Helper()
	r.do(func() {
		if len(r.s.udp.sockets) != 1 {
			r.Fatalf("%d sockets", len(r.s.udp.sockets))
		}
		for _, k := range r.s.udp.sockets {
			df, mayFragment = k.df, k.mayFragment
		}
	})
	return df, mayFragment
}

// A packet that arrives at another queue than its flow's keeps DF, and a reassembled one
// has none.
func TestDFOnHostSocket(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, twoQueues(t, &second))
	host, peer := r.udpServer()
	r.sendDatagram(5000, peer, "first") // so that the first queue's engine owns the port
	r.readsDatagram(host, "first")
	if df, _ := r.df(); !df {
		t.Error("DF is lost")
	}
	pieces := fragmentsOf(t, datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(text(3000)), 0), 7, 1500)
	for _, p := range pieces {
		r.g.SendFrame(p)
	}
	r.readsDatagram(host, text(3000))
	if df, may := r.df(); df || !may {
		t.Error("a reassembled datagram has DF")
	}
	second.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte("elsewhere"), 0))
	r.readsDatagram(host, "elsewhere")
	if df, _ := r.df(); !df {
		t.Error("DF is lost between queues")
	}
	plain := datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte("plain"), 0)
	ip := plain[packet.VNetHdrBytes : packet.VNetHdrBytes+packet.IPv4Bytes]
	ip[6], ip[10], ip[11] = 0, 0, 0
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip))
	second.SendFrame(plain)
	r.readsDatagram(host, "plain")
	if df, _ := r.df(); df {
		t.Error("a packet without DF is sent with it")
	}
}
