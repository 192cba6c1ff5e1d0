package usernet

import (
	"fmt"
	"net/netip"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// device is a queue of the guest's device. It carries whole packets behind virtio headers.
type device struct {
	fd        int
	ether     *ethernet // the link layer of a TAP device; nil: the device is a TUN
	linkBytes int       // of the link layer's header
	readAt    int       // where in buf the next packet is to lie
	pool      *pool
	buf       *buffer // receives the next packet
	readable  bool
	removed   bool    // the device no longer exists
	capture   capture // is called with each packet in both directions; may be nil

	scratch [packet.VNetHdrBytes + packet.IPv6Bytes + packet.TCPBytes + packet.SYNOptionBytes]byte
	stats   *Stats
}

// ready implements source.
func (d *device) ready(uint32) { d.readable = true }

// read returns the next packet with its virtio header, or nil if there is none now or the
// link layer has handled it. The packet is valid until the next read, unless the caller takes
// its buffer with steal.
func (d *device) read() []byte {
	mem := d.buf.mem[d.readAt:]
	n, errno := sys.ReadNow(d.fd, mem)
	switch {
	case errno == unix.EINTR:
		return nil
	case errno == unix.EAGAIN:
		d.readable = false
		return nil
	case errno != 0 || n == 0:
		// EBADFD: the device was removed. A socket's end is 0 bytes.
		d.readable, d.removed = false, true
		return nil
	}
	d.stats.TunOutPackets++
	d.stats.TunOutBytes += uint64(n)
	frame := mem[:n]
	if d.ether != nil {
		return d.ether.strip(frame)
	}
	d.capture.frame(nil, frame)
	return frame
}

// steal gives the buffer of the last packet to the caller. It returns nil if there is no
// other buffer for the device, which must always have one: it receives the
// acknowledgements that free the others.
func (d *device) steal() *buffer {
	other := d.pool.get()
	if other == nil {
		return nil
	}
	b := d.buf
	d.buf = other
	return b
}

// write writes a packet with its virtio header to the guest, and reports whether the
// guest's kernel took it. The caller may reuse the frame at once.
func (d *device) write(frame []byte) bool {
	var n int
	var errno unix.Errno
	if d.ether != nil {
		n, errno = d.ether.write(d.fd, frame)
	} else {
		n, errno = sys.WriteNow(d.fd, frame)
	}
	if errno != 0 || n != len(frame)+d.linkBytes {
		d.stats.Dropped++
		return false
	}
	d.stats.TunInPackets++
	d.stats.TunInBytes += uint64(n)
	d.capture.frame(d.linkHeader(), frame)
	return true
}

// linkHeader returns the link layer's header of the last packet that was written.
func (d *device) linkHeader() []byte {
	if d.ether == nil {
		return nil
	}
	return d.ether.head[packet.VNetHdrBytes:]
}

// start starts the vector v with the first piece of a frame, which begins with the virtio
// header. The caller appends the other pieces.
func (d *device) start(v *sys.Vector, first []byte) {
	if d.ether != nil {
		d.ether.prepend(v, first)
		return
	}
	v.Reset()
	v.Append(first)
}

// putVNetHdr fills in the virtio header of a frame whose IP header begins at
// packet.VNetHdrBytes, and the pseudo header's sum in its transport header, so that the
// guest's kernel trusts or completes the checksum. The transport header has headerBytes, and
// payload bytes follow it. segment is the payload of each packet that the frame stands for;
// 0: the frame is one packet.
func putVNetHdr(frame []byte, src, dst netip.Addr, proto packet.Protocol, headerBytes, payload, segment int) {
	ipBytes := packet.IPBytes(src)
	transport := frame[packet.VNetHdrBytes+ipBytes:]
	h := packet.VNetHdr{Flags: packet.NeedsChecksum, ChecksumStart: uint16(ipBytes), ChecksumOffset: packet.UDPChecksumOffset}
	if proto == packet.TCP {
		h.ChecksumOffset = packet.TCPChecksumOffset
	}
	if segment > 0 {
		h.GSOType, h.GSOSize, h.HeaderBytes = packet.GSOUDP, uint16(segment), uint16(ipBytes+headerBytes)
		if proto == packet.TCP {
			h.GSOType = packet.GSOTCPv4
			if !src.Is4() {
				h.GSOType = packet.GSOTCPv6
			}
		}
	}
	h.Put(frame)
	sum := packet.Fold(packet.PseudoSum(src, dst, proto, headerBytes+payload))
	transport[h.ChecksumOffset], transport[h.ChecksumOffset+1] = byte(sum>>8), byte(sum)
}

// checkMTU returns an error if a device can't have the MTU.
func checkMTU(mtu int, v6 bool) error {
	least := 576 // RFC 791: every host accepts this much
	if v6 {
		least = 1280 // RFC 8200 section 5
	}
	if mtu < least || mtu > maxMTU {
		return fmt.Errorf("MTU %d: want %d to %d bytes", mtu, least, maxMTU)
	}
	return nil
}

// maxMTU leaves room for the virtio header in 64 KiB, as in other rootless networks.
const maxMTU = 65520
