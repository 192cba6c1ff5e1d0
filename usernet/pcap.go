package usernet

import (
	"fmt"
	"io"
	"sync"
	"time"

	"cleat/packet"
)

// maxCaptured is the snapshot length in the file's header. No packet is longer, so all are
// kept whole.
const maxCaptured = 65535 + packet.EthernetBytes

// capture writes packets to a capture file. link is the header of the link layer, nil for a
// TUN device, and header is the virtio header. A nil capture does nothing.
type capture func(link, header, pkt []byte)

// frame captures a frame of a TUN device: a virtio header and a packet.
func (c capture) frame(link, frame []byte) {
	if c != nil && len(frame) >= packet.VNetHdrBytes {
		c(link, frame[:packet.VNetHdrBytes], frame[packet.VNetHdrBytes:])
	}
}

// packet captures a packet.
func (c capture) packet(link, header, pkt []byte) {
	if c != nil {
		c(link, header, pkt)
	}
}

// newCapture writes the file's header to w. The capture writes a super-packet as the packets
// that it stands for, with their checksums, in one Write. If a Write fails the capture ends,
// and the network goes on.
func newCapture(w io.Writer, linkType uint32) (capture, error) {
	buf := make([]byte, packet.PcapFileBytes)
	packet.PutPcapFile(buf, linkType, maxCaptured)
	if _, err := w.Write(buf); err != nil {
		return nil, fmt.Errorf("write capture header: %w", err)
	}
	var mu sync.Mutex // each queue has a thread
	failed := false
	return func(link, header, pkt []byte) {
		mu.Lock()
		defer mu.Unlock()
		if failed {
			return
		}
		buf = captured(buf[:0], link, header, pkt, time.Now())
		if len(buf) > 0 {
			_, err := w.Write(buf)
			failed = err != nil
		}
	}, nil
}

// captured appends the packets that pkt stands for as records, each behind the link header.
// A packet that can't be parsed is kept as it is.
func captured(buf, link, header, pkt []byte, at time.Time) []byte {
	var h packet.VNetHdr
	var cut packet.Splitter
	if h.Parse(header) != nil {
		return buf
	}
	if cut.Start(&h, pkt) != nil {
		_ = cut.Start(new(packet.VNetHdr), pkt)
	}
	for {
		start := len(buf)
		buf = append(buf, make([]byte, packet.PcapRecordBytes)...)
		buf = append(buf, link...)
		body := len(buf)
		buf = append(buf, make([]byte, cut.MaxBytes())...)
		n := cut.Next(buf[body:])
		if n == 0 {
			return buf[:start]
		}
		buf = buf[:body+n]
		packet.PutPcapRecord(buf[start:], at, len(link)+n, len(link)+n)
	}
}
