package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// Subnet is one subnet of a network.
type Subnet struct {
	// Prefix has no host bits and at least two addresses: an IPv4 prefix is at most a /31, an
	// IPv6 prefix at most a /127.
	Prefix netip.Prefix

	// First and Last bound the addresses that Allocate chooses from. The zero Addr means the
	// first or last address of Prefix. Claim ignores both.
	First, Last netip.Addr

	// Part means that Prefix is a part of a larger network, and may be a single address: its first and last
	// addresses are like any other.
	Part bool

	// Gateway is given to nobody. The zero Addr means that there is no gateway.
	Gateway netip.Addr

	// Exclude are parts of Prefix that are given to nobody. They may overlap each other, and
	// reach beyond Prefix.
	Exclude []netip.Prefix
}

// Check returns a *SubnetError if a field of s is invalid.
func (s *Subnet) Check() error {
	bad := func(field, value, reason string) error {
		return &SubnetError{Subnet: s.Prefix, Field: field, Value: value, Reason: reason}
	}
	p := s.Prefix
	switch {
	case !p.IsValid() || p.Addr().Is4In6():
		return bad("Prefix", p.String(), "is not an IPv4 or IPv6 prefix")
	case p != p.Masked():
		return bad("Prefix", p.String(), "has host bits; the subnet is "+p.Masked().String())
	case p.IsSingleIP() && !s.Part:
		return bad("Prefix", p.String(), "has a single address")
	}
	for _, f := range []struct {
		name string
		addr netip.Addr
	}{{"First", s.First}, {"Last", s.Last}, {"Gateway", s.Gateway}} {
		if f.addr.IsValid() && !p.Contains(f.addr) {
			return bad(f.name, f.addr.String(), "is outside "+p.String())
		}
	}
	if first, last := s.bounds(); last.Less(first) {
		return bad("Last", last.String(), "is before the first address, "+first.String())
	}
	if b, ok := find(fixed(p), s.Gateway); ok && !s.Part {
		return bad("Gateway", s.Gateway.String(), "is "+string(b.reason)+" "+p.String())
	}
	for _, e := range s.Exclude {
		if !e.Overlaps(p) {
			return bad("Exclude", e.String(), "is outside "+p.String())
		}
	}
	return nil
}

// bounds returns the first and last address that Allocate chooses from.
func (s *Subnet) bounds() (first, last netip.Addr) {
	first, last = Bounds(s.Prefix)
	if s.First.IsValid() {
		first = s.First
	}
	if s.Last.IsValid() {
		last = s.Last
	}
	return first, last
}

// block is a part of a subnet that is given to nobody.
type block struct {
	prefix netip.Prefix
	reason Reason
}

func single(a netip.Addr, reason Reason) block {
	return block{netip.PrefixFrom(a, a.BitLen()), reason}
}

// fixed returns the blocks that every subnet with this prefix has. One of two addresses has
// none (RFC 3021 for IPv4, RFC 6164 for IPv6).
func fixed(p netip.Prefix) []block {
	first, last := Bounds(p)
	switch {
	case p.Bits() == first.BitLen()-1:
		return nil
	case first.Is4():
		return []block{single(first, NetworkAddress), single(last, BroadcastAddress)}
	default:
		return []block{single(first, AnycastAddress)} // RFC 4291, section 2.6.1
	}
}

func (s *Subnet) blocks() []block {
	var all []block
	if !s.Part {
		all = fixed(s.Prefix)
	}
	if s.Gateway.IsValid() {
		all = append(all, single(s.Gateway, GatewayAddress))
	}
	for _, e := range s.Exclude {
		all = append(all, block{e, ExcludedAddress})
	}
	return all
}

// find returns the first of the blocks that has the address.
func find(blocks []block, a netip.Addr) (block, bool) {
	i := slices.IndexFunc(blocks, func(b block) bool { return b.prefix.Contains(a) })
	if i < 0 {
		return block{}, false
	}
	return blocks[i], true
}

// usable returns an *UnusableError if nobody may have the address.
func (s *Subnet) usable(a netip.Addr) error {
	e := &UnusableError{Addr: a, Reason: OutsideSubnet, Subnets: []netip.Prefix{s.Prefix}}
	if !s.Prefix.Contains(a) {
		return e
	}
	b, blocked := find(s.blocks(), a)
	if !blocked {
		return nil
	}
	e.Reason = b.reason
	return e
}

// maxRange is the number of addresses from the first that Allocate chooses from. It is an IPv4
// /8, and far more than a host has containers.
const maxRange = 1 << 24

// space numbers the addresses that Allocate chooses from: they have the offsets 0 to size-1.
type space struct {
	first  netip.Addr
	size   int
	blocks []block
}

func (s *Subnet) space() space {
	first, last := s.bounds()
	size := maxRange
	if d, ok := distance(first, last); ok && d < maxRange {
		size = int(d) + 1
	}
	return space{first: first, size: size, blocks: s.blocks()}
}

func (s *space) addr(offset int) netip.Addr { return plus(s.first, uint64(offset)) }

// offset returns the offset of an address. It reports whether the address is in the space.
func (s *space) offset(a netip.Addr) (int, bool) {
	d, ok := distance(s.first, a)
	if !ok || d >= uint64(s.size) {
		return 0, false
	}
	return int(d), true
}

// skip returns the offset behind the block that the address at offset is in; offset itself if
// it is in none.
func (s *space) skip(offset int) int {
	b, ok := find(s.blocks, s.addr(offset))
	if !ok {
		return offset
	}
	_, last := Bounds(b.prefix)
	if end, ok := s.offset(last); ok {
		return end + 1
	}
	return s.size
}

// Bounds returns the first and last address of a valid prefix.
func Bounds(p netip.Prefix) (first, last netip.Addr) {
	first = p.Masked().Addr()
	b := first.As16()
	for bit := 128 - first.BitLen() + p.Bits(); bit < 128; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return first, like(first, b)
}

// like returns the address with these bytes, as an IPv4 address if a is one.
func like(a netip.Addr, b [16]byte) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom16(b).Unmap()
	}
	return netip.AddrFrom16(b)
}

// halves returns an address as a number of 128 bits.
func halves(a netip.Addr) (high, low uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// plus returns the address n behind a.
func plus(a netip.Addr, n uint64) netip.Addr {
	high, low := halves(a)
	low, carry := bits.Add64(low, n, 0)
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], high+carry)
	binary.BigEndian.PutUint64(b[8:], low)
	return like(a, b)
}

// distance returns b - a. It reports whether both are of one family, and the distance is
// neither negative nor above 2^64-1.
func distance(a, b netip.Addr) (uint64, bool) {
	if a.BitLen() != b.BitLen() {
		return 0, false
	}
	aHigh, aLow := halves(a)
	bHigh, bLow := halves(b)
	low, borrow := bits.Sub64(bLow, aLow, 0)
	high, borrow := bits.Sub64(bHigh, aHigh, borrow)
	return low, high == 0 && borrow == 0
}
