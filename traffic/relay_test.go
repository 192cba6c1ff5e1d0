package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// device is a stand-in for a TUN device: each write is one packet at the other
// end.
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

// relaying joins two devices; stop ends that and says what was moved.
func relaying(t testing.TB, delay time.Duration) (a, b int, stop func() relayEnd) {
	t.Helper()
	a, ra := device(t)
	b, rb := device(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan relayEnd, 1)
	go func() {
		var e relayEnd
		e.ab, e.ba, e.err = Relay(ctx, ra, rb, delay)
		done <- e
	}()
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
	for name, delay := range map[string]time.Duration{"at once": 0, "delayed": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			a, b, stop := relaying(t, delay)
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
			end := stop()
			want := RelayStats{Packets: 5, Bytes: 1 + 20 + 1500 + 3000 + 65559}
			if end.err != nil || end.ab != want || end.ba != want {
				t.Errorf("end %+v, want %+v both ways", end, want)
			}
		})
	}
}

func TestRelayKeepsOrderAndDelay(t *testing.T) {
	const delay = 20 * time.Millisecond
	a, b, _ := relaying(t, delay)
	began := nanos()
	const n = 100
	for i := range uint32(n) {
		if _, err := unix.Write(a, binary.BigEndian.AppendUint32(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(n) {
		if got := binary.BigEndian.Uint32(read(t, b)); got != i {
			t.Fatalf("packet %d arrived as number %d", got, i)
		}
	}
	if took := time.Duration(nanos() - began); took < delay {
		t.Errorf("packets arrived after %s, want at least %s", took, delay)
	}
}

func TestRelayEndsWithItsDevice(t *testing.T) {
	a, ra := device(t)
	_, rb := device(t)
	unix.Shutdown(a, unix.SHUT_RDWR)
	if _, _, err := Relay(context.Background(), ra, rb, 0); err == nil {
		t.Error("the relay ended without an error though a device is gone")
	}
}

func TestRelayQueueIsBounded(t *testing.T) {
	w := newRelayWay(-1, -1, -1, time.Hour)
	for range 2 * relayQueue {
		w.enqueue(1<<62, 2000)
	}
	if w.count > relayQueue || w.queued > relayQueueBytes {
		t.Errorf("%d packets with %d bytes wait, want at most %d and %d", w.count, w.queued, relayQueue, relayQueueBytes)
	}
	if w.stats.Dropped != uint64(2*relayQueue-w.count) {
		t.Errorf("%d dropped, %d wait", w.stats.Dropped, w.count)
	}
}

func TestRelayAllocatesNothing(t *testing.T) {
	for name, delay := range map[string]time.Duration{"at once": 0, "delayed": time.Nanosecond} {
		t.Run(name, func(t *testing.T) {
			a, ra := device(t)
			b, rb := device(t)
			unix.SetNonblock(ra, true)
			w := newRelayWay(ra, rb, -1, delay)
			packet, in := make([]byte, 1500), make([]byte, 2048)
			once := func() {
				for range 4 {
					unix.Write(a, packet)
				}
				if _, err := w.batch(); err != nil {
					t.Fatal(err)
				}
				if err := w.release(1 << 62); err != nil {
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
		})
	}
}
