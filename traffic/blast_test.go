package traffic

import (
	"net/netip"
	"sync/atomic"
	"testing"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// flowPair returns both ends of a flow over loopback.
func flowPair(t testing.TB) (from, to *flow) {
	t.Helper()
	home := netip.MustParseAddrPort("127.0.0.1:0")
	open := func() (*socket, netip.AddrPort) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &socket{fd: fd}
		t.Cleanup(func() { s.close(false) })
		if err := s.setUpUDP(home, 1<<20); err != nil {
			t.Fatal(err)
		}
		sa, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		return s, addrPort(sa)
	}
	a, at := open()
	b, bt := open()
	for _, s := range []struct {
		fd int
		to netip.AddrPort
	}{{a.fd, bt}, {b.fd, at}} {
		sa, _ := sockaddr(s.to)
		if err := unix.Connect(s.fd, sa); err != nil {
			t.Fatal(err)
		}
	}
	return &flow{sock: a, index: 3, token: 9}, &flow{sock: b, index: 3, token: 9}
}

// receiver sets up what flow.receive needs before its loop.
func receiver(size int) (*sys.Batch, [][]byte) {
	n := batchFor(size)
	in, bufs := sys.NewBatch(n, 1), make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, size)
		in.SetBuffer(i, 0, bufs[i])
		in.SetBuffers(i, 1)
	}
	return in, bufs
}

// drain reads what has arrived, without waiting.
func drain(t testing.TB, f *flow, in *sys.Batch, bufs [][]byte) {
	t.Helper()
	for {
		got, err := in.Recv(f.sock.fd, unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		f.take(in, bufs, got)
	}
}

func TestBlastIsCounted(t *testing.T) {
	tests := []struct {
		name  string
		size  int
		gso   bool
		count int
	}{
		{"smallest", datagramHeaderLen, false, 10},
		{"one more byte", datagramHeaderLen + 1, false, 10},
		{"an Ethernet frame", 1448, false, 100},
		{"fragmented where the MTU is 1500", 8192, false, 5},
		{"largest", MaxDatagramBytes, false, 2},
		{"segments", 1448, true, 100},
		{"small segments", 64, true, 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			from, to := flowPair(t)
			if tt.gso {
				if err := unix.SetsockoptInt(to.sock.fd, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
					t.Skip("UDP_GRO: ", err)
				}
			}
			segments := 1
			if tt.gso {
				segments = min(segmentsMax, MaxDatagramBytes/tt.size)
			}
			var stop atomic.Bool
			s := &blast{flow: from, round: 2, size: tt.size, gso: tt.gso, stop: &stop, until: 1 << 62}
			out := newOutgoing(s, segments)
			in, bufs := receiver(receiveSize(tt.size, tt.gso))
			to.begin(2)
			seq := uint64(0)
			for seq < uint64(tt.count) {
				seq += s.send(out, seq, min(out.capacity(), tt.count-int(seq)))
				if s.lastErr != nil {
					t.Fatal(s.lastErr)
				}
				drain(t, to, in, bufs)
			}
			got := to.tally
			if got.packets != uint64(tt.count) || got.track.unique != got.packets || got.bytes != uint64(tt.count*tt.size) {
				t.Errorf("%d packets (%d unique), %d bytes; want %d and %d", got.packets, got.track.unique, got.bytes, tt.count, tt.count*tt.size)
			}
			if got.track.reordered != 0 || got.track.duplicated != 0 {
				t.Errorf("%d reordered, %d duplicated on loopback", got.track.reordered, got.track.duplicated)
			}
		})
	}
}

// Only datagrams of this flow and this round are counted.
func TestFlowIgnoresStrangers(t *testing.T) {
	f := &flow{token: 9, index: 3}
	f.begin(2)
	for name, d := range map[string]datagram{
		"another token":  {kind: datagramData, token: 8, index: 3, round: 2},
		"another stream": {kind: datagramData, token: 9, index: 4, round: 2},
		"another round":  {kind: datagramData, token: 9, index: 3, round: 1},
		"an ack":         {kind: datagramAck, token: 9, index: 3, round: 2},
	} {
		b := make([]byte, datagramHeaderLen)
		d.put(b)
		f.handle(b, 1)
		f.handle(b[:10], 1)
		if f.tally.packets != 0 {
			t.Errorf("%s counts", name)
		}
	}
	b := make([]byte, 100)
	datagram{kind: datagramData, token: 9, index: 3, round: 2}.put(b)
	f.handle(b, 1)
	if f.tally.packets != 1 || f.tally.bytes != 100 {
		t.Errorf("%d packets, %d bytes; want 1 and 100", f.tally.packets, f.tally.bytes)
	}
}

func TestDatagramPathAllocatesNothing(t *testing.T) {
	from, to := flowPair(t)
	var stop atomic.Bool
	s := &blast{flow: from, round: 2, size: 1448, stop: &stop, until: 1 << 62}
	out := newOutgoing(s, 1)
	in, bufs := receiver(2048)
	to.begin(2)
	seq := uint64(0)
	n := testing.AllocsPerRun(50, func() {
		seq += s.send(out, seq, 16)
		drain(t, to, in, bufs)
	})
	if n != 0 {
		t.Errorf("%v allocations per 16 datagrams, want 0", n)
	}
	if got := to.tally.packets; got != seq {
		t.Errorf("%d of %d arrived", got, seq)
	}
}
