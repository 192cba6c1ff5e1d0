package endpoint_test

import (
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// TestPathsUnderDatagrams takes paths down and up at both ends, each of them the one in use at
// times, while datagrams come at two thirds of what one carries: none is lost. The queue may
// be long, for a busy machine's sake.
func TestPathsUnderDatagrams(t *testing.T) {
	b := newBed(t, plan{outside: []int{4, 6}, rate: 20e6, more: "queue: 100ms"})
	d := openDatagrams(t, b.ends[0].node, b.ends[1].node, inner(0, 4), inner(1, 4))
	must(t, d.to.(*net.UDPConn).SetReadBuffer(8<<20)) // the test reads late at times; the kernel gives what it may
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
		e.ask("down " + device(path))
		time.Sleep(150 * time.Millisecond)
		e.ask("up " + device(path))
		b.wants(5*time.Second, 0, 1)
	}
	stop.Store(true)
	n := <-sent
	for end := time.Now().Add(3 * time.Second); came.Load() < n && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if c := came.Load(); c != n {
		t.Errorf("%d datagrams were sent, %d came; right: %+v", n, c, b.ends[1].status().Stats)
	}
}
