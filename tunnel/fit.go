package tunnel

import (
	"encoding/binary"

	"cleat/internal/sys"
	"cleat/packet"
)

// innerMTU returns the size of the largest inner packet that every path in use carries,
// or 1<<16 if no path has a socket. It is called with mu held.
func (t *Tunnel) innerMTU() int {
	smallest := 0
	for _, p := range t.paths {
		if p == nil || p.fd < 0 {
			continue
		}
		n := p.mtu - Overhead(p.v6, t.cfg.Key != nil)
		if smallest == 0 || n < smallest {
			smallest = n
		}
	}
	if smallest == 0 {
		return 1 << 16
	}
	return smallest
}

// fit makes the packets of an entry fit the paths: it lowers the MSS in a SYN and
// fragments packets that allow it. For others it sends the ICMP error to the sender, so
// that packets are never dropped silently between the two ends. It returns the entries to
// queue.
func (o *outbound) fit(e *entry, dst []*entry) []*entry {
	limit := o.innerMTU
	if e.vnet.GSOType == packet.GSONone {
		clampMSS(e.pkt, limit, e.partial)
	}
	if e.split.MaxBytes() <= limit {
		return append(dst, e)
	}
	var ip packet.IP
	if e.vnet.GSOType == packet.GSONone && packet.ParseIP(e.pkt, &ip) == nil && !ip.DontFragment && e.completeChecksum() {
		dst = o.fragment(&ip, limit, dst)
	} else {
		o.sendTooBig(e.pkt, limit)
	}
	o.t.mu.Lock()
	o.t.arena.release(e)
	o.t.mu.Unlock()
	return dst
}

// fragment fragments an IPv4 packet, which may be a fragment itself.
func (o *outbound) fragment(ip *packet.IP, limit int, dst []*entry) []*entry {
	var f packet.Fragmenter
	if f.Start(ip, ip.Payload, limit) != nil {
		return dst
	}
	for {
		buf := o.readBuffer()
		n := f.Next(buf[packet.VNetHdrBytes:])
		if n == 0 {
			return dst
		}
		clear(buf[:packet.VNetHdrBytes])
		if e := o.supply.newEntry(packet.VNetHdrBytes + n); e != nil {
			dst = append(dst, e)
		}
	}
}

// sendTooBig answers a packet that is too big with an ICMP error.
func (o *outbound) sendTooBig(pkt []byte, limit int) {
	o.t.stats.tooBig.Add(1)
	var ip packet.IP
	if packet.ParseIP(pkt, &ip) != nil {
		return
	}
	var b [packet.VNetHdrBytes + packet.MaxICMPErrorBytes]byte
	e := packet.NewICMPError(packet.ErrorTooBig, ip.Src.Is4(), limit)
	if n := packet.PutICMPError(b[packet.VNetHdrBytes:], &e, ip.Dst, pkt); n > 0 {
		_, _ = sys.WriteNow(o.t.cfg.Device, b[:packet.VNetHdrBytes+n]) // if it is lost, the next packet causes another
	}
}

// clampMSS lowers the MSS of a SYN to what fits. It updates the checksum unless that is
// partial (RFC 1624).
func clampMSS(b []byte, limit int, partial bool) {
	at := transportOffset(b)
	if at == 0 || at+packet.TCPBytes > len(b) {
		return
	}
	v6 := b[0]>>4 == 6
	if !v6 && (b[9] != byte(packet.TCP) || binary.BigEndian.Uint16(b[6:])&0x3fff != 0) || v6 && b[6] != byte(packet.TCP) {
		return
	}
	t := b[at:]
	header := int(t[12]>>4) * 4
	if t[13]&packet.SYN == 0 || header > len(t) {
		return
	}
	maxMSS := limit - at - packet.TCPBytes
	if !v6 {
		maxMSS = limit - packet.IPv4Bytes - packet.TCPBytes
	}
	for option := packet.TCPBytes; option+1 < header; {
		switch {
		case t[option] == 0:
			return
		case t[option] == 1:
			option++
			continue
		case t[option] == 2 && t[option+1] == 4 && option+4 <= header:
			lowerMSS(t, option+2, maxMSS, partial)
			return
		}
		if t[option+1] < 2 {
			return
		}
		option += int(t[option+1])
	}
}

// lowerMSS changes the field at offset at.
func lowerMSS(t []byte, at, maxMSS int, partial bool) {
	old := binary.BigEndian.Uint16(t[at:])
	if int(old) <= maxMSS || maxMSS < 1 {
		return
	}
	binary.BigEndian.PutUint16(t[at:], uint16(maxMSS))
	if partial {
		return
	}
	from, to := uint64(old), uint64(uint16(maxMSS))
	if at%2 != 0 { // the field spans two words of the sum
		from, to = from>>8|from<<8&0xff00, to>>8|to<<8&0xff00
	}
	sum := binary.BigEndian.Uint16(t[packet.TCPChecksumOffset:])
	binary.BigEndian.PutUint16(t[packet.TCPChecksumOffset:], ^packet.Fold(uint64(^sum)+(^from&0xffff)+to))
}
