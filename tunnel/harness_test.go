package tunnel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel"
	"cleat/tunnel/secure"
	"cleat/tunnel/tunneltest"
)

// harness runs two Tunnels against each other.
type harness struct {
	t     *testing.T
	paths []*tunneltest.Path
	ends  [2]*end
	next  uint64 // number of the next packet
}

// end is one of the Tunnels.
type end struct {
	cfg    tunnel.Config
	dev    *tunneltest.Device
	tunnel *tunnel.Tunnel
	stop   func()

	mu     sync.Mutex
	got    map[uint64]int // how often packets have arrived, by number
	events []tunnel.Event
}

// newHarness makes both ends with the same configuration, without starting them. Every
// packet counts, so queues may become as long as a busy machine makes them.
func newHarness(t *testing.T, cfg tunnel.Config, paths int) *harness {
	t.Helper()
	w := &harness{t: t}
	cfg.Queue = time.Minute
	for i := range paths {
		p, err := tunneltest.NewPath(fmt.Sprint("path", i), i%2 == 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		w.paths = append(w.paths, p)
	}
	for i := range w.ends {
		dev, err := tunneltest.NewDevice()
		if err != nil {
			t.Fatal(err)
		}
		e := &end{cfg: cfg, dev: dev, got: map[uint64]int{}}
		e.cfg.Device, e.cfg.Opener = dev.FD(), tunneltest.Opener{Side: tunneltest.Side(i), Paths: w.paths}
		e.cfg.OnEvent = func(v tunnel.Event) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.events = append(e.events, v)
		}
		for _, p := range w.paths {
			e.cfg.Paths = append(e.cfg.Paths, p.Config(tunneltest.Side(i)))
		}
		w.ends[i] = e
		w.listen(e)
	}
	return w
}

// listen records what the end's host receives, until the test ends.
func (w *harness) listen(e *end) {
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			all, err := e.dev.Receive()
			if err != nil {
				w.t.Errorf("receive from device: %v", err)
				return
			}
			e.mu.Lock()
			for _, b := range all {
				e.got[packetNumber(b)]++
			}
			e.mu.Unlock()
		}
	})
	w.t.Cleanup(func() {
		close(done)
		work.Wait()
		e.dev.Close()
	})
}

// packetNumber returns the number in a datagram, or forgedFrom if send did not make it.
func packetNumber(b []byte) uint64 {
	if len(b) < packet.IPv4Bytes+packet.UDPBytes+8 {
		return forgedFrom
	}
	number := binary.BigEndian.Uint64(b[packet.IPv4Bytes+packet.UDPBytes:])
	// The kernel changes the IP ID when it segments merged packets.
	want := datagram(number, len(b)-packet.IPv4Bytes-packet.UDPBytes-8)
	if !bytes.Equal(want[12:], b[12:]) {
		return forgedFrom
	}
	return number
}

// withKeys gives both ends keys; the first initiates handshakes.
func (w *harness) withKeys() *harness {
	w.t.Helper()
	var keys [2]secure.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = secure.GenerateKey(); err != nil {
			w.t.Fatal(err)
		}
	}
	if !secure.Initiates(keys[0].Public(), keys[1].Public()) {
		keys[0], keys[1] = keys[1], keys[0]
	}
	for i, e := range w.ends {
		e.cfg.Key = &tunnel.Key{Private: keys[i], Peer: keys[1-i].Public()}
	}
	return w
}

func (w *harness) start(i int) {
	w.t.Helper()
	e := w.ends[i]
	var err error
	if e.tunnel, err = tunnel.New(e.cfg); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.tunnel.Run(ctx) }()
	var once sync.Once
	e.stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					w.t.Errorf("end %d: %v", i, err)
				}
			case <-time.After(5 * time.Second):
				w.t.Errorf("end %d is still running after 5 s", i)
			}
		})
	}
	w.t.Cleanup(e.stop)
}

// startBoth starts both ends and waits until they have a session.
func (w *harness) startBoth() *harness {
	w.t.Helper()
	w.start(0)
	w.start(1)
	w.wait("both ends to be up", 6*time.Second, func() bool {
		return w.ends[0].tunnel.Status().Up && w.ends[1].tunnel.Status().Up
	})
	return w
}

// wait waits for a condition.
func (w *harness) wait(condition string, limit time.Duration, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.logStatus()
			w.t.Fatalf("waited %v for %s", limit, condition)
		}
	}
}

func (w *harness) logStatus() {
	w.t.Helper()
	for i, e := range w.ends {
		w.t.Logf("end %d: %+v", i, e.tunnel.Status())
	}
}

// datagram returns a packet that carries a number.
func datagram(number uint64, size int) []byte {
	src, dst := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.7")
	b := make([]byte, packet.IPv4Bytes+packet.UDPBytes+8+size)
	n := packet.PutIP(b, src, dst, packet.UDP, 0, len(b)-packet.IPv4Bytes)
	packet.PutUDP(b[n:], 1000+uint16(number%5), 53, len(b)-n-packet.UDPBytes)
	binary.BigEndian.PutUint64(b[n+packet.UDPBytes:], number)
	sum := packet.TransportChecksum(src, dst, packet.UDP, b[n:])
	binary.BigEndian.PutUint16(b[n+packet.UDPChecksumOffset:], sum)
	return b
}

// send sends packets from an end, one per millisecond, and returns their numbers.
func (w *harness) send(from, n int, each func(i int)) []uint64 {
	w.t.Helper()
	var sent []uint64
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range n {
		if each != nil {
			each(i)
		}
		sent = append(sent, w.sendOne(from))
		<-tick.C
	}
	return sent
}

// sendOne sends a packet from an end and returns its number.
func (w *harness) sendOne(from int) uint64 {
	w.t.Helper()
	if err := w.ends[from].dev.Send(packet.VNetHdr{}, datagram(w.next, 200)); err != nil {
		w.t.Fatal(err)
	}
	w.next++
	return w.next - 1
}

// stallTime is how long nothing may arrive while packets are missing. What a busy machine
// delays, paths seem to carry slowly, so a queue may take any time: it must only move.
const stallTime = 4 * time.Second

// waitArrived waits until all packets have arrived at an end, and checks that none
// arrived twice.
func (w *harness) waitArrived(to int, numbers []uint64) {
	w.t.Helper()
	e := w.ends[to]
	missing, arrivals := e.missing(numbers)
	first := len(missing)
	for last, since := arrivals, time.Now(); len(missing) > 0; missing, arrivals = e.missing(numbers) {
		if arrivals != last {
			last, since = arrivals, time.Now()
		}
		if time.Since(since) > stallTime {
			w.logStatus()
			w.t.Fatalf("end %d: nothing has arrived for %v; of packets %d to %d, %d were missing at first, and now %v",
				to, stallTime, numbers[0], numbers[len(numbers)-1], first, missing)
		}
		time.Sleep(time.Millisecond)
	}
	w.checkNoDuplicates()
}

// missing returns which of the packets have not arrived, and how many packets have, these
// and others.
func (e *end) missing(numbers []uint64) (missing []uint64, arrivals int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range numbers {
		if e.got[i] == 0 {
			missing = append(missing, i)
		}
	}
	return missing, len(e.got)
}

// checkNoDuplicates checks that no packet arrived twice.
func (w *harness) checkNoDuplicates() {
	w.t.Helper()
	for i, e := range w.ends {
		e.mu.Lock()
		for number, n := range e.got {
			if n > 1 {
				w.t.Errorf("end %d received packet %d %d times", i, number, n)
			}
		}
		e.mu.Unlock()
	}
}

// passBothWays sends packets both ways and waits for them.
func (w *harness) passBothWays() {
	w.t.Helper()
	w.waitArrived(1, w.send(0, 50, nil))
	w.waitArrived(0, w.send(1, 50, nil))
}

// waitTraffic sends packets both ways until they arrive. What has waited for a session
// arrives at once, so these are few.
func (w *harness) waitTraffic(most time.Duration) {
	w.t.Helper()
	for _, from := range []int{0, 1} {
		first := w.next
		w.wait(fmt.Sprintf("traffic from end %d", from), most, func() bool {
			w.send(from, 5, nil)
			time.Sleep(20 * time.Millisecond)
			return w.countFrom(1-from, first) > 0
		})
	}
}

// countFrom returns how many packets from a number on have arrived at an end.
func (w *harness) countFrom(to int, first uint64) (n int) {
	e := w.ends[to]
	e.mu.Lock()
	defer e.mu.Unlock()
	for number := range e.got {
		if number >= first {
			n++
		}
	}
	return n
}
