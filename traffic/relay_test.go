package traffic

import (
	"bytes"
	"context"
	"testing"

	"golang.org/x/sys/unix"
)

// device stands in for a TUN device: each write is one packet at the other end.
func device(t testing.TB) (ours, relays int) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range p {
		t.Cleanup(func() { unix.Close(fd) })
	}
	return p[0], p[1]
}

type relayEnd struct {
	ab, ba RelayStats
	err    error
}

// relaying joins two devices. stop ends that and returns the counts.
func relaying(t testing.TB) (a, b int, stop func() relayEnd) {
	t.Helper()
	return relayingBy(t, func(ctx context.Context, ra, rb int) (e relayEnd) {
		e.ab, e.ba, e.err = Relay(ctx, ra, rb)
		return e
	})
}

// relayingBy is relaying with a choice of relay.
func relayingBy(t testing.TB, relay func(ctx context.Context, a, b int) relayEnd) (a, b int, stop func() relayEnd) {
	t.Helper()
	a, ra := device(t)
	b, rb := device(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan relayEnd, 1)
	go func() { done <- relay(ctx, ra, rb) }()
	stopped := false
	stop = func() relayEnd { stopped = true; cancel(); return <-done }
	t.Cleanup(func() {
		if !stopped {
			stop()
		}
	})
	return a, b, stop
}

func read(t testing.TB, fd int) []byte {
	t.Helper()
	buf := make([]byte, relayPacketBytes)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func TestRelayBothWays(t *testing.T) {
	a, b, stop := relaying(t)
	crossBothWays(t, a, b)
	checkCrossed(t, stop())
}

// crossBothWays sends packets of all sizes, one after the other.
func crossBothWays(t *testing.T, a, b int) {
	t.Helper()
	// The last is a super-packet with virtio and Ethernet headers.
	for i, size := range []int{1, 20, 1500, 3000, 65535 + 10 + 14} {
		p := bytes.Repeat([]byte{byte(i + 1)}, size)
		for _, way := range [][2]int{{a, b}, {b, a}} {
			if _, err := unix.Write(way[0], p); err != nil {
				t.Fatal(err)
			}
			if got := read(t, way[1]); !bytes.Equal(got, p) {
				t.Errorf("packet of %d bytes arrived as %d bytes", len(p), len(got))
			}
		}
	}
}

// checkCrossed checks for the counts of crossBothWays.
func checkCrossed(t *testing.T, end relayEnd) {
	t.Helper()
	want := RelayStats{Packets: 5, Bytes: 1 + 20 + 1500 + 3000 + 65559}
	if end.err != nil || end.ab != want || end.ba != want {
		t.Errorf("end %+v, want %+v both ways", end, want)
	}
}

func TestRelayEndsWithItsDevice(t *testing.T) {
	a, ra := device(t)
	_, rb := device(t)
	unix.Shutdown(a, unix.SHUT_RDWR)
	if _, _, err := Relay(context.Background(), ra, rb); err == nil {
		t.Error("the relay ended without an error though a device is gone")
	}
}

func TestRelayAllocatesNothing(t *testing.T) {
	a, ra := device(t)
	b, rb := device(t)
	unix.SetNonblock(ra, true)
	w := newRelayWay(ra, rb, -1)
	allocatesNothing(t, a, b, func() error {
		_, err := w.batch()
		return err
	})
}

// allocatesNothing sends four packets from a to b repeatedly, and checks that the relay
// does not allocate.
func allocatesNothing(t *testing.T, a, b int, move func() error) {
	t.Helper()
	packet, in := make([]byte, 1500), make([]byte, 2048)
	once := func() {
		for range 4 {
			unix.Write(a, packet)
		}
		if err := move(); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if n, err := unix.Read(b, in); n != len(packet) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	once()
	if n := testing.AllocsPerRun(50, once); n != 0 {
		t.Errorf("%v allocations per 4 packets, want 0", n)
	}
}
