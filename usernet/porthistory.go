package usernet

import (
	"net/netip"
	"sync"
	"time"
)

// portHistory records how much recent connections to each port have moved. A spliced
// connection is two TCP connections that the kernel opens and closes, one in the guest's
// namespace and one on the host. Through the device, one end of the first is ours, which
// costs less. So splicing pays only if many bytes follow, and that matters where short
// connections follow each other closely.
type portHistory struct {
	mu    sync.Mutex
	ports map[netip.AddrPort]portRecord
}

// portRecord is the history of one port.
type portRecord struct {
	shortInRow int       // short connections in a row
	lastEnd    time.Time // when the last of them ended
}

const (
	longFlowBytes  = 256 << 10              // a connection with as many bytes in both directions is worth splicing
	shortGap       = 100 * time.Millisecond // a short connection predicts another one within this time
	shortThreshold = 8                      // short connections in a row that predict another one
	maxPortRecords = 1 << 12                // ports remembered
)

// expectShort reports whether the next connection to a port is likely to be short.
func (h *portHistory) expectShort(port netip.AddrPort, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, known := h.ports[port]
	return known && p.shortInRow >= shortThreshold && now.Sub(p.lastEnd) < shortGap
}

func (h *portHistory) record(port netip.AddrPort, bytes uint64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if bytes >= longFlowBytes {
		delete(h.ports, port)
		return
	}
	p, known := h.ports[port]
	if !known && len(h.ports) >= maxPortRecords {
		clear(h.ports) // a guest with so many ports does not use one much
	}
	if now.Sub(p.lastEnd) >= shortGap {
		p.shortInRow = 0
	}
	h.ports[port] = portRecord{min(p.shortInRow+1, shortThreshold), now}
}

func (f *tcpFlow) serverPort() netip.AddrPort {
	if f.inbound {
		return f.guest
	}
	return f.peer
}

// recordHistory records what the connection has moved.
func (f *tcpFlow) recordHistory() {
	if g := f.s.group.gate; g != nil && !g.always && (f.state == stateEstablished || f.state == stateSpliced) {
		g.history.record(f.serverPort(), f.movedBytes(), time.Now())
	}
}

// noteGrowth is called when n bytes have moved through the device. If they make a connection
// long that was expected to be short, the connection is recorded at once, so that the next
// ones to its port are spliced without waiting for its end.
func (f *tcpFlow) noteGrowth(n int) {
	if f.deviceReason == reasonShort && f.movedBytes() >= longFlowBytes && f.movedBytes()-uint64(n) < longFlowBytes {
		f.recordHistory()
	}
}

// movedBytes returns the payload moved in both directions.
func (f *tcpFlow) movedBytes() uint64 {
	if j := f.junction; j != nil {
		return j.out.bytes + j.in.bytes
	}
	return f.outBytes + f.inBytes
}
