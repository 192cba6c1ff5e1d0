package usernet

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// FuzzDatagrams gives a Stack frames, each after its length, as a hostile guest may write
// them. The Stack must not panic, keep memory, or answer frames that can't be parsed.
func FuzzDatagrams(f *testing.F) {
	frames := func(all ...[]byte) []byte {
		var b []byte
		for _, frame := range all {
			b = append(binary.BigEndian.AppendUint16(b, uint16(len(frame))), frame...)
		}
		return b
	}
	guest4, guest6 := netip.AddrPortFrom(rigGuest4, 5000), netip.AddrPortFrom(rigGuest6, 5000)
	peer4, peer6 := netip.AddrPortFrom(rigPeer4, 9), netip.AddrPortFrom(rigPeer6, 9)
	whole := datagramFrame(guest6, peer6, make([]byte, 3000), 0)
	f.Add(frames(datagramFrame(guest4, peer4, []byte("ahoy"), 0), datagramFrame(guest4, peer4, make([]byte, 500), 100)))
	f.Add(frames(echoFrame(rigGuest4, rigGateway4, 1, 2, []byte("ahoy")), echoFrame(rigGuest6, rigPeer6, 1, 2, nil)))
	var v packet.VNetHdr
	var ip packet.IP
	if v.Parse(whole) == nil && packet.ParseIP(whole[packet.VNetHdrBytes:], &ip) == nil {
		var cut packet.Fragmenter
		ip.ID = 5
		room := make([]byte, packet.VNetHdrBytes+1500)
		if cut.Start(&ip, ip.Payload, 1500) == nil {
			var all [][]byte
			for n := cut.Next(room[packet.VNetHdrBytes:]); n > 0; n = cut.Next(room[packet.VNetHdrBytes:]) {
				all = append(all, append([]byte(nil), room[:packet.VNetHdrBytes+n]...))
			}
			f.Add(frames(all...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pair[0])
		device := os.NewFile(uintptr(pair[1]), "device")
		defer device.Close()
		judge := func(f Flow) Verdict {
			switch f.Destination.Port() % 4 {
			case 0:
				return Verdict{Action: Refuse}
			case 1:
				return toNobody(f)
			case 2:
				return Verdict{Action: Drop}
			}
			return Verdict{Action: Use}
		}
		stack, err := New(Config{
			TUN: device, MTU: 1500, Guest4: rigGuest4, Guest6: rigGuest6, Gateway4: rigGateway4, Gateway6: rigGateway6,
			Policy: judgeFunc(judge), Limits: Limits{Flows: 16, BufferBytes: 4 << 20},
		})
		if err != nil {
			t.Fatal(err)
		}
		s := stack.group.engines[0]
		s.ctx = t.Context()
		defer func() { s.running = true; s.shutdown() }()
		for count := 0; len(b) >= 2 && count < 64; count++ {
			n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
			if n > 0 {
				_, _ = unix.Write(pair[0], b[2:2+n])
			}
			b = b[2+n:]
			s.dev.readable = true
			if err := s.round(); err != nil {
				t.Fatal(err)
			}
		}
		for s.dev.readable {
			if err := s.round(); err != nil {
				t.Fatal(err)
			}
		}
		s.loop.start = s.loop.start.Add(-time.Hour)
		for range 2 {
			s.dev.readable = true
			if err := s.round(); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(s.udp.flows); n != 0 {
			t.Errorf("%d datagram flows left after an hour", n)
		}
		if s.udp.reassembler != nil && s.udp.reassembler.Bytes() != 0 {
			t.Errorf("%d bytes of fragments left after an hour", s.udp.reassembler.Bytes())
		}
		if len(s.udp.gathered) != 0 || len(s.udp.sockets) != 0 {
			t.Errorf("%d parcels and %d sockets left", len(s.udp.gathered), len(s.udp.sockets))
		}
	})
}

// toNobody redirects a flow to a port of the loopback without a listener.
func toNobody(f Flow) Verdict {
	to := loopback4
	if f.Destination.Addr().Is6() {
		to = loopback6
	}
	return Verdict{Action: Redirect, To: netip.AddrPortFrom(to, 1)}
}
