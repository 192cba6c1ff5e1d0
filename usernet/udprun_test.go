package usernet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

func TestUDPRunsKeepOrder(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		other, otherPeer := r.udpServer()
		var want, wantOther []string
		for i := range 200 {
			size := 500
			switch i % 17 {
			case 5:
				size = 20 // ends a run
			case 9:
				size = 900
			case 11:
				size = 0
			}
			d := fmt.Sprintf("%03d", i) + text(size)
			if size == 0 {
				d = ""
			}
			r.sendDatagram(5000, peer, d)
			want = append(want, d)
			if i%5 == 0 {
				r.sendDatagram(5001, otherPeer, d)
				wantOther = append(wantOther, d)
			}
		}
		var from netip.AddrPort
		for _, d := range want {
			from = r.readsDatagram(host, d)
		}
		for _, d := range wantOther {
			if at := r.readsDatagram(other, d); at == from {
				t.Fatal("two ports of the guest share a host port")
			}
		}
	})
}

func TestUDPSuperPacketSplitByHost(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		payload := text(1000*7 + 300)
		r.g.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(payload), 1000))
		for piece := range slices.Chunk([]byte(payload), 1000) {
			r.readsDatagram(host, string(piece))
		}
	})
}

func TestUDPSuperPacketRefusedByHost(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	// More datagrams than a kernel splits a message into (UDP_MAX_SEGMENTS is 64 or 128).
	payload := text(10 * 150)
	r.g.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(payload), 10))
	for piece := range slices.Chunk([]byte(payload), 10) {
		r.readsDatagram(host, string(piece))
	}
}

func TestUDPDatagramsBecomeSuperPackets(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		r.sendDatagram(5000, peer, "hello")
		to := sys.MakeAddress(r.readsDatagram(host, "hello"), false)
		raw, err := host.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		out := sys.NewOutbox(1, 1)
		out.Begin(&to)
		payload := text(1200*20 + 17)
		out.Append([]byte(payload))
		out.SetSegment(1200)
		if err := raw.Control(func(fd uintptr) {
			if _, errno := out.SendNow(int(fd), 0); errno != 0 {
				t.Skip("UDP_SEGMENT: ", errno)
			}
		}); err != nil {
			t.Fatal(err)
		}
		p := r.g.Await(isUDP(peer, netip.AddrPortFrom(r.guest, 5000)))
		if p.VNet.GSOSize != 1200 {
			t.Errorf("received datagrams of %d, want a super-packet of datagrams of 1200", p.VNet.GSOSize)
		}
		var got, want []string
		for got = r.datagrams(p); len(got) < 21; {
			got = append(got, r.datagrams(r.g.Await(isUDP(peer, netip.AddrPortFrom(r.guest, 5000))))...)
		}
		for piece := range slices.Chunk([]byte(payload), 1200) {
			want = append(want, string(piece))
		}
		if !slices.Equal(got, want) {
			t.Error("other datagrams than were sent")
		}
	})
}

func TestUDPAdjacentDatagramsJoined(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	r.sendDatagram(5000, peer, "hello")
	from := r.readsDatagram(host, "hello")
	var want []string
	r.do(func() { // all of them arrive while the loop waits for us
		for i := range 40 {
			d := fmt.Sprintf("%02d", i) + text(700)
			if i == 20 {
				d = d[:300]
			}
			want = append(want, d)
			r.answer(host, from, d)
		}
	})
	var got []string
	frames := 0
	for ; len(got) < len(want); frames++ {
		got = append(got, r.datagrams(r.g.Await(isUDP(peer, netip.AddrPortFrom(r.guest, 5000))))...)
	}
	if !slices.Equal(got, want) {
		t.Fatal("other datagrams than were sent")
	}
	if frames > 3 { // a batch of 32, of which one ends a run, and the rest
		t.Errorf("40 datagrams arrived in %d frames, want 3", frames)
	}
}

func TestUDPKernelWithoutSuperPackets(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	r.sendDatagram(5000, peer, "hello")
	from := r.readsDatagram(host, "hello")
	r.do(func() {
		r.s.udp.noUSO = true
		for range 5 {
			r.answer(host, from, text(100))
		}
	})
	for range 5 {
		p := r.g.Await(isUDP(peer, netip.AddrPortFrom(r.guest, 5000)))
		if p.VNet.GSOType != packet.GSONone || r.datagrams(p)[0] != text(100) {
			t.Fatalf("got %v with %+v", p, p.VNet)
		}
	}
}

func TestUDPFullSocketWaits(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.BufferBytes = 64 << 20 })
	host, peer := r.udpServer()
	r.sendDatagram(5000, peer, "first")
	r.readsDatagram(host, "first")
	var k *udpSocket
	r.do(func() {
		for _, k = range r.s.udp.sockets {
			k.full = true
		}
	})
	for i := range maxQueued + 10 {
		r.sendDatagram(5000, peer, fmt.Sprint(i))
	}
	r.fence()
	r.do(func() {
		if n := r.s.stats.OverLimit; n != 10 || len(k.queue) != maxQueued {
			t.Errorf("%d dropped, %d queued; want 10 and %d", n, len(k.queue), maxQueued)
		}
		k.awaitWritable() // the kernel reports at once that there is room
	})
	for i := range maxQueued {
		r.readsDatagram(host, fmt.Sprint(i))
	}
	r.do(func() {
		if r.s.largePool.used != 1 {
			t.Errorf("%d buffers in use", r.s.largePool.used)
		}
	})
}

// rounds runs a Stack step by step on the test's own goroutine.
func rounds(t *testing.T, change ...func(*Config)) (r *rig, round func()) {
	t.Helper()
	r = newStack(t, change...)
	if _, err := r.s.loop.add(r.s.dev.fd, unix.EPOLLIN|edgeTriggered, &r.s.dev); err != nil {
		t.Fatal(err)
	}
	r.s.ctx = t.Context()
	r.Cleanup(func() { r.s.running = true; r.s.shutdown() })
	return r, func() {
		r.s.dev.readable = true // so that it does not wait
		if err := r.s.round(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUDPAllocations(t *testing.T) {
	tests := []struct {
		name  string
		frame func(from, to netip.AddrPort) []byte
		count int
	}{
		{"datagrams", func(from, to netip.AddrPort) []byte { return datagramFrame(from, to, []byte(text(1400)), 0) }, 32},
		{"super-packets", func(from, to netip.AddrPort) []byte { return datagramFrame(from, to, []byte(text(1400*20)), 1400) }, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, round := rounds(t)
			host, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(host)
			_ = unix.SetsockoptInt(host, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
			if err := unix.Bind(host, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				t.Fatal(err)
			}
			own, errno := sys.LocalAddress(host)
			if errno != 0 {
				t.Fatal(errno)
			}
			from := netip.AddrPortFrom(r.guest, 5000)
			peer := netip.AddrPortFrom(r.peer, own.AddrPort().Port())
			frame := tt.frame(from, peer)
			bufs := make([][]byte, 64)
			for i := range bufs {
				bufs[i] = make([]byte, 2048)
			}
			in, out := sys.NewInbox(bufs), sys.NewOutbox(64, 64)
			answers := 0
			exchange := func() {
				for range tt.count {
					r.g.SendFrame(frame)
				}
				for range 4 {
					round()
				}
				n, _ := in.RecvNow(host)
				out.Reset()
				for i := range n {
					to := in.From(i)
					out.Begin(&to)
					out.Append(in.Data(i))
				}
				if n > 0 {
					out.SendNow(host, 0)
				}
				for range 4 {
					round()
				}
				answers += r.g.Discard()
			}
			if n := testing.AllocsPerRun(20, exchange); n != 0 {
				t.Errorf("%v allocations for an exchange of %d frames, want 0", n, tt.count)
			}
			if answers < 21 {
				t.Errorf("%d answers came in 21 exchanges", answers)
			}
		})
	}
}

func BenchmarkUDPOutbound(b *testing.B) {
	for _, size := range []int{64, 1400} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			// A Stack alone: it reads the device and sends, without a guest's kernel.
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer unix.Close(pair[0])
			_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)
			stack, err := New(Config{TUN: os.NewFile(uintptr(pair[1]), "device"), MTU: 1500, Guest4: rigGuest4, Gateway4: rigGateway4, Policy: allowAll})
			if err != nil {
				b.Fatal(err)
			}
			s := stack.group.engines[0]
			s.ctx = b.Context()
			if _, err := s.loop.add(s.dev.fd, unix.EPOLLIN|edgeTriggered, &s.dev); err != nil {
				b.Fatal(err)
			}
			defer func() { s.running = true; s.shutdown() }()
			sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				b.Fatal(err)
			}
			defer sink.Close()
			frame := datagramFrame(netip.AddrPortFrom(rigGuest4, 5000), netip.AddrPortFrom(loopback4, localPort(sink)), make([]byte, size), 0)
			b.SetBytes(int64(size * 64))
			b.ReportAllocs()
			for b.Loop() {
				for range 64 {
					_, _ = unix.Write(pair[0], frame)
				}
				s.dev.readable = true
				for s.dev.readable {
					if err := s.round(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
