package endpoint_test

import (
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// TestPathsUnderDatagrams disables and enables paths at both ends, including the one in
// use, while datagrams are sent at two thirds of the rate of one path: none may be lost.
// The queue is long because the machine may be busy.
func TestPathsUnderDatagrams(t *testing.T) {
	b := newTestbed(t, topology{outside: []int{4, 6}, rate: 20e6, more: "queue: 100ms"})
	d := openDatagrams(t, b.ends[0].node, b.ends[1].node, innerAddr(0, 4), innerAddr(1, 4))
	must(t, d.to.(*net.UDPConn).SetReadBuffer(8<<20)) // the test sometimes reads late; as much as the kernel allows
	var stop atomic.Bool
	var came atomic.Int64
	go func() {
		got := make([]byte, 2000)
		for {
			if _, err := d.to.Read(got); err != nil {
				return // the test has ended
			}
			came.Add(1)
		}
	}()
	sent := make(chan int64)
	go func() {
		packet := make([]byte, 1000)
		n := int64(0)
		for next := time.Now(); !stop.Load(); next = next.Add(600 * time.Microsecond) {
			time.Sleep(time.Until(next))
			binary.BigEndian.PutUint64(packet, uint64(n))
			if _, err := d.from.Write(packet); err == nil {
				n++
			}
		}
		sent <- n
	}()
	for i := range 8 {
		time.Sleep(100 * time.Millisecond)
		e, path := b.ends[i%2], i/2%2
		e.command("down " + deviceName(path))
		time.Sleep(150 * time.Millisecond)
		e.command("up " + deviceName(path))
		b.waitPaths(5*time.Second, 0, 1)
	}
	stop.Store(true)
	n := <-sent
	for end := time.Now().Add(3 * time.Second); came.Load() < n && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if c := came.Load(); c != n {
		t.Errorf("%d datagrams were sent, %d arrived; right: %+v", n, c, b.ends[1].status().Stats)
	}
}
