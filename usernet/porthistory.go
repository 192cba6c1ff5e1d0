package usernet

import (
	"net/netip"
	"sync"
	"time"
)

// habits are what connections to a port have lately been like. To begin and end,
// a spliced connection takes two handshakes and closes where one that goes by the
// device takes one and a half; it pays only if many bytes follow. That matters
// where short ones follow each other closely.
type portHistory struct {
	mu    sync.Mutex
	ports map[netip.AddrPort]portRecord
}

// habit is of one port.
type portRecord struct {
	shortInRow int       // connections that were short, with none between that was not
	lastEnd    time.Time // when the last of them ended
}

const (
	longFlowBytes  = 256 << 10              // what makes a connection worth splicing, both ways together
	shortGap       = 100 * time.Millisecond // how long after a short one another is expected
	shortThreshold = 8                      // short ones in a row after which the next is expected to be short
	maxPortRecords = 1 << 12                // ports remembered
)

// expectShort tells whether the next connection to a port is likely to be short.
func (h *portHistory) expectShort(port netip.AddrPort, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, known := h.ports[port]
	return known && p.shortInRow >= shortThreshold && now.Sub(p.lastEnd) < shortGap
}

// ended notes how many bytes a connection moved.
func (h *portHistory) record(port netip.AddrPort, bytes uint64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if bytes >= longFlowBytes {
		delete(h.ports, port)
		return
	}
	p, known := h.ports[port]
	if !known && len(h.ports) >= maxPortRecords {
		clear(h.ports) // whoever has so many ports does not use one much
	}
	if now.Sub(p.lastEnd) >= shortGap {
		p.shortInRow = 0
	}
	h.ports[port] = portRecord{min(p.shortInRow+1, shortThreshold), now}
}

// served is the port that f is a connection to: a server's.
func (f *tcpFlow) serverPort() netip.AddrPort {
	if f.inbound {
		return f.guest
	}
	return f.peer
}

// expectShort tells whether f is likely to be so short that the device is the
// faster way.
func (f *tcpFlow) expectShort() bool {
	g := f.s.group.gate
	return !g.always && g.history.expectShort(f.serverPort(), time.Now())
}

// remember notes what kind of connection f was. One by the device that turns out
// to be long is noted at once: the next ones need not wait for its end.
func (f *tcpFlow) recordHistory() {
	if g := f.s.group.gate; g != nil && !g.always && (f.state == stateEstablished || f.state == stateSpliced) {
		g.history.record(f.serverPort(), f.movedBytes(), time.Now())
	}
}

// grew notes when f, of which n bytes have just moved by the device, has become
// long.
func (f *tcpFlow) noteGrowth(n int) {
	if f.deviceReason == reasonShort && f.movedBytes() >= longFlowBytes && f.movedBytes()-uint64(n) < longFlowBytes {
		f.recordHistory()
	}
}

// moved is the payload that went either way.
func (f *tcpFlow) movedBytes() uint64 {
	if j := f.junction; j != nil {
		return j.out.bytes + j.in.bytes
	}
	return f.outBytes + f.inBytes
}
