package main_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// stream is numbered datagrams from one container to another, until it is stopped.
type stream struct {
	t        *testing.T
	ends     string // whose stream it is, e.g. "a0 to b0"
	stop     chan struct{}
	sent     chan uint32
	received chan []uint32

	firstLost uint32 // after end, if some are lost
}

const (
	streamPort  = 9
	streamPause = time.Millisecond
	// arriveWithin is how long the last datagram is waited for: an emulated processor pauses for a quarter of a second.
	arriveWithin = 5 * time.Second
)

// stream starts a stream. It returns when the first datagram has arrived.
func (k *container) stream(to *container) *stream {
	t := k.host.c.t
	t.Helper()
	s := &stream{t: t, ends: k.name + " to " + to.name, stop: make(chan struct{}), sent: make(chan uint32, 1), received: make(chan []uint32, 1)}
	var in *net.UDPConn
	must(t, to.NS.Do(func() (err error) {
		in, err = net.ListenUDP("udp", &net.UDPAddr{Port: streamPort})
		return err
	}))
	var out net.Conn
	must(t, k.NS.Do(func() (err error) {
		out, err = net.Dial("udp", netip.AddrPortFrom(to.addr, streamPort).String())
		return err
	}))
	first := make(chan struct{})
	var latest atomic.Uint32 // that has arrived
	go func() {
		var all []uint32
		b := make([]byte, 64)
		for {
			n, err := in.Read(b)
			if err != nil {
				s.received <- all
				return
			}
			if n == 4 {
				all = append(all, binary.BigEndian.Uint32(b))
				latest.Store(all[len(all)-1])
				if len(all) == 1 {
					close(first)
				}
			}
		}
	}()
	go func() {
		defer out.Close()
		tick := time.NewTicker(streamPause)
		defer tick.Stop()
		for i := uint32(0); ; i++ {
			out.Write(binary.BigEndian.AppendUint32(nil, i))
			select {
			case <-s.stop:
				for until := time.Now().Add(arriveWithin); latest.Load() != i && time.Now().Before(until); { // it is on its way
					time.Sleep(streamPause)
				}
				in.Close()
				s.sent <- i + 1
				return
			case <-tick.C:
			}
		}
	}()
	select {
	case <-first:
	case <-time.After(10 * time.Second):
		t.Fatalf("no datagram of %s reaches %s", k.name, to.name)
	}
	return s
}

// losesNone stops the stream, and fails the test if a datagram got lost.
func (s *stream) losesNone() {
	s.t.Helper()
	if sent, lost, longest := s.end(); lost > 0 {
		s.t.Errorf("%s: %d of %d datagrams are lost, %d in a row; the first is number %d", s.ends, lost, sent, longest, s.firstLost)
	}
}

// end stops the stream. It returns how many datagrams were sent, how many got lost, and the longest run of lost ones.
func (s *stream) end() (sent, lost, longest int) {
	close(s.stop)
	n := <-s.sent
	got := map[uint32]bool{}
	for _, i := range <-s.received {
		got[i] = true
	}
	run := 0
	for i := range n {
		if got[i] {
			run = 0
			continue
		}
		if lost++; lost == 1 {
			s.firstLost = i
		}
		run++
		longest = max(longest, run)
	}
	return int(n), lost, longest
}
