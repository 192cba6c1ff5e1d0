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
const maxCaptured = 65535

// newCapture writes the file's header to w and returns a function that writes a frame. A
// frame is written as the packets that it stands for, with their checksums, in one Write.
// If a Write fails the capture ends, and the network goes on.
func newCapture(w io.Writer) (func(frame []byte), error) {
	buf := make([]byte, packet.PcapFileBytes)
	packet.PutPcapFile(buf, maxCaptured)
	if _, err := w.Write(buf); err != nil {
		return nil, fmt.Errorf("write capture header: %w", err)
	}
	var mu sync.Mutex // each queue has a thread
	failed := false
	return func(frame []byte) {
		mu.Lock()
		defer mu.Unlock()
		if failed {
			return
		}
		buf = captured(buf[:0], frame, time.Now())
		if len(buf) > 0 {
			_, err := w.Write(buf)
			failed = err != nil
		}
	}, nil
}

// captured appends a frame's packets as records. A frame that can't be parsed is kept as
// it is.
func captured(buf, frame []byte, at time.Time) []byte {
	var h packet.VNetHdr
	var cut packet.Splitter
	if h.Parse(frame) != nil {
		return buf
	}
	pkt := frame[packet.VNetHdrBytes:]
	if cut.Start(&h, pkt) != nil {
		_ = cut.Start(new(packet.VNetHdr), pkt)
	}
	for {
		start := len(buf)
		room := packet.PcapRecordBytes + cut.MaxBytes()
		buf = append(buf, make([]byte, room)...)
		n := cut.Next(buf[start+packet.PcapRecordBytes:])
		if n == 0 {
			return buf[:start]
		}
		packet.PutPcapRecord(buf[start:], at, n, n)
		buf = buf[:start+packet.PcapRecordBytes+n]
	}
}
