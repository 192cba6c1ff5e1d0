package main_test

import (
	"encoding/binary"
	"net"
	"net/netip"
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
}

const (
	streamPort  = 9
	streamPause = time.Millisecond
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
				if all = append(all, binary.BigEndian.Uint32(b)); len(all) == 1 {
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
				time.Sleep(100 * time.Millisecond) // what is on the way
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
		s.t.Errorf("%s: %d of %d datagrams are lost, %d in a row", s.ends, lost, sent, longest)
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
		lost++
		run++
		longest = max(longest, run)
	}
	return int(n), lost, longest
}
