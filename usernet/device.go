package usernet

import (
	"fmt"
	"net/netip"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// device is the guest's side: whole packets behind virtio headers.
type device struct {
	fd       int
	pool     *pool
	buf      *buffer // what the next packet is read into
	readable bool
	removed  bool               // the device was removed
	capture  func(frame []byte) // sees each packet both ways, virtio header first; nil: nobody

	scratch [packet.VNetHdrBytes + packet.IPv6Bytes + packet.TCPBytes + packet.SYNOptionBytes]byte
	stats   *Stats
}

// ready implements source.
func (d *device) ready(uint32) { d.readable = true }

// read is the next packet with its virtio header; nil: there is none now. It is
// valid until the next read, unless the caller keeps its buffer by steal.
func (d *device) read() []byte {
	n, errno := sys.ReadNow(d.fd, d.buf.mem)
	switch {
	case errno == unix.EINTR:
		return nil
	case errno == unix.EAGAIN:
		d.readable = false
		return nil
	case errno != 0 || n == 0:
		// EBADFD: the device was removed under us; a socket's end is 0 bytes.
		d.readable, d.removed = false, true
		return nil
	}
	d.stats.TunOutPackets++
	d.stats.TunOutBytes += uint64(n)
	if d.capture != nil {
		d.capture(d.buf.mem[:n])
	}
	return d.buf.mem[:n]
}

// steal makes the buffer of the packet last read the caller's. It is nil when
// there is no other for the device, which must always have one: it brings the
// acknowledgements that free the rest.
func (d *device) steal() *buffer {
	other := d.pool.get()
	if other == nil {
		return nil
	}
	b := d.buf
	d.buf = other
	return b
}

// write hands a packet with its virtio header to the guest and tells whether
// the guest's kernel took it. The frame is the caller's again at once.
func (d *device) write(frame []byte) bool {
	n, errno := sys.WriteNow(d.fd, frame)
	if errno != 0 || n != len(frame) {
		d.stats.Dropped++
		return false
	}
	d.stats.TunInPackets++
	d.stats.TunInBytes += uint64(n)
	if d.capture != nil {
		d.capture(frame)
	}
	return true
}

// seal fills in the virtio header of a frame whose IP header begins at
// packet.VNetHdrBytes, and the pseudo header's sum in its transport header, so
// that the guest's kernel trusts or completes the checksum. segment is the
// payload of each packet that the frame stands for; 0: it is one packet.
func putVNetHdr(frame []byte, src, dst netip.Addr, proto packet.Protocol, headerBytes, segment int) {
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
	sum := packet.Fold(packet.PseudoSum(src, dst, proto, len(transport)))
	transport[h.ChecksumOffset], transport[h.ChecksumOffset+1] = byte(sum>>8), byte(sum)
}

// checkMTU tells whether a device can have the MTU.
func checkMTU(mtu int, v6 bool) error {
	least := 576 // RFC 791: every host can take so much
	if v6 {
		least = 1280 // RFC 8200 section 5
	}
	if mtu < least || mtu > maxMTU {
		return fmt.Errorf("MTU %d: want %d to %d bytes", mtu, least, maxMTU)
	}
	return nil
}

// maxMTU leaves room for the virtio header in 64 KiB, as the usual rootless
// networks have it.
const maxMTU = 65520
