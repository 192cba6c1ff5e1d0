package tunnel

import (
	"encoding/binary"
	"net/netip"

	"cleat/packet"
)

// sources are the networks that inner packets may come from. The other end may be in the
// hands of somebody who would like to be somebody else to our host: a packet from any
// other address is dropped. It is read by the receiving thread alone, and never changed.
type sources struct {
	any bool
	v4  []source4
	v6  []source6
}

type source4 struct{ network, mask uint32 }

type source6 struct{ network, mask [2]uint64 }

// linkLocal is fe80::/10: it is this device's alone, and no router forwards it.
var linkLocal = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80}), 10)

// newSources makes sources of prefixes; nil: anybody may send.
func newSources(from []netip.Prefix) *sources {
	s := &sources{any: from == nil}
	for _, p := range append([]netip.Prefix{linkLocal}, from...) {
		if p.Addr().Is4() {
			mask := uint32(uint64(0xffffffff) << (32 - p.Bits()))
			b := p.Addr().As4()
			s.v4 = append(s.v4, source4{binary.BigEndian.Uint32(b[:]) & mask, mask})
			continue
		}
		b := p.Addr().As16()
		one := source6{mask: [2]uint64{^uint64(0) << max(64-p.Bits(), 0), ^uint64(0) << min(128-p.Bits(), 64)}}
		for i := range one.mask {
			one.network[i] = binary.BigEndian.Uint64(b[8*i:]) & one.mask[i]
		}
		s.v6 = append(s.v6, one)
	}
	return s
}

// admit reports whether an inner packet may come from where it does; nil lets all in. What is no IP packet is
// for the device to refuse.
func (s *sources) admit(pkt []byte) bool {
	switch {
	case s == nil || s.any:
		return true
	case len(pkt) >= packet.IPv4Bytes && pkt[0]>>4 == 4:
		a := binary.BigEndian.Uint32(pkt[12:])
		for i := range s.v4 {
			if a&s.v4[i].mask == s.v4[i].network {
				return true
			}
		}
		return false
	case len(pkt) >= packet.IPv6Bytes && pkt[0]>>4 == 6:
		high, low := binary.BigEndian.Uint64(pkt[8:]), binary.BigEndian.Uint64(pkt[16:])
		for i := range s.v6 {
			if m := &s.v6[i]; high&m.mask[0] == m.network[0] && low&m.mask[1] == m.network[1] {
				return true
			}
		}
		return false
	}
	return false
}

// SetSources changes Config.Sources.
func (t *Tunnel) SetSources(from []netip.Prefix) { t.sources.Store(newSources(from)) }
