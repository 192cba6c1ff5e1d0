package sys

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// openUDP returns a non-blocking UDP socket on one of the host's addresses.
func openUDP(t testing.TB, at string) (fd int, own netip.AddrPort) {
	t.Helper()
	addr := netip.MustParseAddr(at)
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if addr.Is6() {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: addr.As16()}
	} else if addr.IsUnspecified() {
		sa = &unix.SockaddrInet4{}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, sa); err != nil {
		t.Skip(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		own = netip.AddrPortFrom(addr, uint16(name.Port))
	case *unix.SockaddrInet6:
		own = netip.AddrPortFrom(addr, uint16(name.Port))
	}
	return fd, own
}

func inbox(n, size int) *Inbox {
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, size)
	}
	return NewInbox(bufs)
}

func set(t testing.TB, fd, level, option int) {
	t.Helper()
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		t.Skipf("socket option %d/%d: %v", level, option, err)
	}
}

func TestAddress(t *testing.T) {
	tests := []struct {
		name   string
		in     string
		mapped bool
		out    string
	}{
		{"IPv4", "192.0.2.1:53", false, "192.0.2.1:53"},
		{"IPv4 for an IPv6 socket", "192.0.2.1:53", true, "192.0.2.1:53"},
		{"IPv6", "[2001:db8::1]:53", false, "[2001:db8::1]:53"},
		{"a numbered zone", "[fe80::1%3]:53", false, "[fe80::1%3]:53"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := MakeAddress(netip.MustParseAddrPort(tt.in), tt.mapped)
			if got := a.AddrPort().String(); got != tt.out {
				t.Errorf("%s became %s", tt.in, got)
			}
			if a != MakeAddress(netip.MustParseAddrPort(tt.in), tt.mapped) {
				t.Error("equal addresses differ")
			}
		})
	}
	var none Address
	if none.AddrPort().IsValid() {
		t.Error("no address is one")
	}
}

func TestOutboxAndInbox(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "::1"} {
		t.Run(at, func(t *testing.T) {
			a, own := openUDP(t, at)
			b, peer := openUDP(t, at)
			if peer.Addr().Is4() {
				set(t, b, unix.IPPROTO_IP, unix.IP_RECVTOS)
				set(t, b, unix.IPPROTO_IP, unix.IP_PKTINFO)
				_ = unix.SetsockoptInt(a, unix.IPPROTO_IP, unix.IP_TOS, 0xb8)
			} else {
				set(t, b, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS)
				set(t, b, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO)
				_ = unix.SetsockoptInt(a, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0xb8)
			}
			to := MakeAddress(peer, false)
			out := NewOutbox(4, 8)
			for _, text := range []string{"one", "two", ""} {
				out.Begin(&to)
				out.Append([]byte(text))
				out.Append([]byte("!"))
			}
			out.SetSource(peer.Addr())
			if n, errno := out.SendNow(a, 0); n != 3 || errno != 0 {
				t.Fatalf("sent %d: %v", n, errno)
			}
			in := inbox(4, 64)
			n, errno := in.RecvNow(b)
			if n != 3 || errno != 0 {
				t.Fatalf("received %d: %v", n, errno)
			}
			for i, want := range []string{"one!", "two!", "!"} {
				from := in.From(i)
				if string(in.Data(i)) != want || from.AddrPort() != own {
					t.Errorf("%q from %s, want %q from %s", in.Data(i), from.AddrPort(), want, own)
				}
				if m := in.Meta(i); m.TOS != 0xb8 || m.Local != peer.Addr() || m.Segment != 0 {
					t.Errorf("message %d: %+v", i, m)
				}
			}
			if _, errno := in.RecvNow(b); errno != unix.EAGAIN {
				t.Errorf("nothing more: %v", errno)
			}
		})
	}
}

func TestOutboxSourceOfMappedAddress(t *testing.T) {
	a, own := openUDP(t, "::")
	b, peer := openUDP(t, "127.0.0.1")
	to := MakeAddress(peer, true)
	out := NewOutbox(1, 1)
	out.Begin(&to)
	out.Append([]byte("x"))
	out.SetSource(netip.MustParseAddr("127.0.0.7"))
	if n, errno := out.SendNow(a, 0); n != 1 {
		t.Fatal(errno)
	}
	in := inbox(1, 8)
	if n, errno := in.RecvNow(b); n != 1 {
		t.Fatal(errno)
	}
	from := in.From(0)
	if want := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.7"), own.Port()); from.AddrPort() != want {
		t.Errorf("came from %s, want %s", from.AddrPort(), want)
	}
}

func TestOutboxSegments(t *testing.T) {
	a, _ := openUDP(t, "127.0.0.1")
	b, peer := openUDP(t, "127.0.0.1")
	set(t, b, unix.SOL_UDP, unix.UDP_GRO)
	to := MakeAddress(peer, false)
	out := NewOutbox(1, 4)
	out.Begin(&to)
	for range 3 {
		out.Append(bytes.Repeat([]byte("x"), 10))
	}
	out.Append([]byte("tail"))
	out.SetSegment(10)
	if n, errno := out.SendNow(a, 0); n != 1 {
		t.Fatal(errno)
	}
	in := inbox(8, 100)
	n, errno := in.RecvNow(b)
	if errno != 0 {
		t.Fatal(errno)
	}
	if n == 1 && (len(in.Data(0)) != 34 || in.Meta(0).Segment != 10) {
		t.Errorf("%d bytes in segments of %d", len(in.Data(0)), in.Meta(0).Segment)
	}
}

func TestErrors(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "::1"} {
		t.Run(at, func(t *testing.T) {
			a, _ := openUDP(t, at)
			b, peer := openUDP(t, at)
			unix.Close(b) // no socket has this port any more
			origin, typ := uint8(OriginICMP), uint8(3)
			if peer.Addr().Is4() {
				set(t, a, unix.IPPROTO_IP, unix.IP_RECVERR)
			} else {
				set(t, a, unix.IPPROTO_IPV6, unix.IPV6_RECVERR)
				origin, typ = OriginICMPv6, 1
			}
			to := MakeAddress(peer, false)
			out := NewOutbox(1, 1)
			out.Begin(&to)
			out.Append([]byte("ahoy"))
			if n, errno := out.SendNow(a, 0); n != 1 {
				t.Fatal(errno)
			}
			errs := NewErrors(512)
			var r ErrorReport
			if !errs.Next(a, &r) {
				t.Fatal("no report")
			}
			if r.Errno != unix.ECONNREFUSED || r.Origin != origin || r.Type != typ || r.Offender != peer.Addr() ||
				r.To.AddrPort() != peer || string(r.Data) != "ahoy" {
				t.Errorf("%+v, to %s, %q", r, r.To.AddrPort(), r.Data)
			}
			if errs.Next(a, &r) {
				t.Errorf("another report: %+v", r)
			}
		})
	}
}

func TestControlMessagesCutShort(t *testing.T) {
	in := inbox(1, 8)
	for i := range in.control {
		in.control[i] = byte(i * 37)
	}
	for n := range controlSpace + 1 {
		in.msgs[0].hdr.SetControllen(n)
		in.Meta(0)
	}
}

func TestVector(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	var v Vector
	for _, text := range []string{"one ", "packet ", "of three"} {
		v.Append([]byte(text))
	}
	if n, errno := v.WriteNow(fds[0]); n != 19 || errno != 0 {
		t.Fatal(n, errno)
	}
	buf := make([]byte, 64)
	n, err := unix.Read(fds[1], buf)
	if err != nil || string(buf[:n]) != "one packet of three" || string(v.AppendTo(nil)) != string(buf[:n]) || len(v.iovs) != 3 || v.Size() != 19 {
		t.Errorf("%q, %v; %q", buf[:n], err, v.AppendTo(nil))
	}
	if v.Reset(); len(v.iovs) != 0 || v.Size() != 0 {
		t.Error("not empty after Reset")
	}
}

func TestDatagramsAllocateNothing(t *testing.T) {
	a, _ := openUDP(t, "127.0.0.1")
	b, peer := openUDP(t, "127.0.0.1")
	set(t, b, unix.IPPROTO_IP, unix.IP_PKTINFO)
	to := MakeAddress(peer, false)
	out, in, buf := NewOutbox(4, 4), inbox(4, 64), make([]byte, 64)
	errs := NewErrors(64)
	allocs := testing.AllocsPerRun(20, func() {
		out.Reset()
		for range 4 {
			out.Begin(&to)
			out.Append(buf)
			out.SetSource(peer.Addr())
		}
		if n, errno := out.SendNow(a, 0); n != 4 {
			t.Fatal(errno)
		}
		n, _ := in.RecvNow(b)
		for i := range n {
			from := in.From(i)
			if in.Meta(i).Local != peer.Addr() || !from.AddrPort().IsValid() {
				t.Fatal("not as sent")
			}
		}
		var r ErrorReport
		errs.Next(a, &r)
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

// BenchmarkSend compares connected and unconnected sockets.
func BenchmarkSend(b *testing.B) {
	const size, count = 1400, 16
	for _, connected := range []bool{true, false} {
		for _, segments := range []bool{true, false} {
			name := "unconnected"
			if connected {
				name = "connected"
			}
			if segments {
				name += ", segments"
			}
			b.Run(name, func(b *testing.B) {
				fd, _ := openUDP(b, "127.0.0.1")
				sink, peer := openUDP(b, "127.0.0.1")
				set(b, sink, unix.SOL_UDP, unix.UDP_GRO)
				to := MakeAddress(peer, false)
				if connected {
					if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(peer.Port()), Addr: peer.Addr().As4()}); err != nil {
						b.Fatal(err)
					}
					to = Address{}
				}
				out, in := NewOutbox(count, count), inbox(count, 1<<16)
				buf := make([]byte, size)
				for range count {
					if !segments || out.Len() == 0 {
						out.Begin(&to)
						if connected {
							out.msgs[out.n-1].hdr.Name = nil
						}
					}
					out.Append(buf)
				}
				if segments {
					out.SetSegment(size)
				}
				b.SetBytes(size * count)
				for b.Loop() {
					if _, errno := out.SendNow(fd, 0); errno != 0 {
						b.Fatal(errno)
					}
					in.RecvNow(sink)
				}
			})
		}
	}
}
