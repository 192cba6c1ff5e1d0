package tunnel

import (
	"encoding/binary"

	"cleat/internal/sys"
	"cleat/packet"
)

// limit is the size of the largest inner packet that every path in use carries. The
// lock is held.
func (t *Tunnel) limit() int {
	least := 0
	for _, p := range t.paths {
		if p == nil || p.fd < 0 {
			continue
		}
		n := p.mtu - Overhead(p.v6, t.cfg.Key != nil)
		if least == 0 || n < least {
			least = n
		}
	}
	if least == 0 {
		return 1 << 16
	}
	return least
}

// fit sees to it that the packets of an entry fit the paths: a TCP connection is told of
// a segment size that does, what may be fragmented is, and for the rest the sender gets
// an ICMP error, never the network between the ends. It returns the entries to queue.
func (o *outbound) fit(e *entry, dst []*entry) []*entry {
	limit := o.limit
	if e.vnet.GSOType == packet.GSONone {
		clampMSS(e.pkt, limit, e.partial)
	}
	if e.split.MaxBytes() <= limit {
		return append(dst, e)
	}
	var ip packet.IP
	if e.vnet.GSOType == packet.GSONone && packet.ParseIP(e.pkt, &ip) == nil && !ip.DontFragment && e.whole() {
		dst = o.fragment(&ip, limit, dst)
	} else {
		o.refuse(e.pkt, limit)
	}
	o.t.mu.Lock()
	o.t.arena.release(e)
	o.t.mu.Unlock()
	return dst
}

// fragment cuts an IPv4 packet; a fragment is cut further.
func (o *outbound) fragment(ip *packet.IP, limit int, dst []*entry) []*entry {
	var f packet.Fragmenter
	if f.Start(ip, ip.Payload, limit) != nil {
		return dst
	}
	for {
		buf := o.buffer()
		n := f.Next(buf[packet.VNetHdrBytes:])
		if n == 0 {
			return dst
		}
		clear(buf[:packet.VNetHdrBytes])
		if e := o.supply.take(packet.VNetHdrBytes + n); e != nil {
			dst = append(dst, e)
		}
	}
}

// refuse answers a packet that is too big.
func (o *outbound) refuse(pkt []byte, limit int) {
	o.t.stats.tooBig.Add(1)
	var ip packet.IP
	if packet.ParseIP(pkt, &ip) != nil {
		return
	}
	var b [packet.VNetHdrBytes + packet.MaxICMPErrorBytes]byte
	e := packet.NewICMPError(packet.ErrorTooBig, ip.Src.Is4(), limit)
	if n := packet.PutICMPError(b[packet.VNetHdrBytes:], &e, ip.Dst, pkt); n > 0 {
		_, _ = sys.WriteNow(o.t.cfg.Device, b[:packet.VNetHdrBytes+n]) // it is answered again
	}
}

// clampMSS lowers the segment size that a SYN announces to what fits. The checksum is
// changed with it unless it is partial (RFC 1624).
func clampMSS(b []byte, limit int, partial bool) {
	at := transportAt(b)
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
	most := limit - at - packet.TCPBytes
	if !v6 {
		most = limit - packet.IPv4Bytes - packet.TCPBytes
	}
	for o := packet.TCPBytes; o+1 < header; {
		switch {
		case t[o] == 0:
			return
		case t[o] == 1:
			o++
			continue
		case t[o] == 2 && t[o+1] == 4 && o+4 <= header:
			lowerMSS(t, o+2, most, partial)
			return
		}
		if t[o+1] < 2 {
			return
		}
		o += int(t[o+1])
	}
}

// lowerMSS changes the field at offset at.
func lowerMSS(t []byte, at, most int, partial bool) {
	old := binary.BigEndian.Uint16(t[at:])
	if int(old) <= most || most < 1 {
		return
	}
	binary.BigEndian.PutUint16(t[at:], uint16(most))
	if partial {
		return
	}
	from, to := uint64(old), uint64(uint16(most))
	if at%2 != 0 { // the field lies across two words of the sum
		from, to = from>>8|from<<8&0xff00, to>>8|to<<8&0xff00
	}
	sum := binary.BigEndian.Uint16(t[packet.TCPChecksumOffset:])
	binary.BigEndian.PutUint16(t[packet.TCPChecksumOffset:], ^packet.Fold(uint64(^sum)+(^from&0xffff)+to))
}
