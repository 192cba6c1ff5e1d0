package overlay

import (
	"hash/fnv"
	"math/big"
	"net/netip"

	"cleat/overlay/registry"
)

// BlockBits returns the prefix length of the blocks of a subnet: 64 addresses, or fewer where that would leave
// fewer than 16 blocks. Blocks of IPv6 have 65,536 addresses.
func BlockBits(subnet netip.Prefix) int {
	const (
		block4, block6 = 26, 112
		most4, most6   = 30, 124 // blocks with fewer than 4 or 16 addresses are of no use
		fewest         = 4       // 16 blocks, in bits
	)
	if subnet.Addr().Is4() {
		return max(subnet.Bits(), min(most4, max(block4, subnet.Bits()+fewest)))
	}
	return max(subnet.Bits(), min(most6, max(block6, subnet.Bits()+fewest)))
}

// freeBlock returns a block of a subnet that nobody has. Hosts begin to search at different blocks, so that
// many of them that claim at the same time seldom choose the same one.
func freeBlock(network string, s registry.Subnet, taken map[string]registry.Block, host string) (netip.Prefix, bool) {
	bits := s.BlockBits - s.Prefix.Bits()
	const searchable = 20 // bits: a million blocks
	count := uint64(1) << min(bits, searchable)
	h := fnv.New64a()
	h.Write([]byte(network + "/" + host))
	start := h.Sum64() % count
	for i := range count {
		p := blockAt(s, (start+i)%count)
		if _, is := taken[p.String()]; !is {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// blockAt returns a block of a subnet by its number.
func blockAt(s registry.Subnet, i uint64) netip.Prefix {
	width := s.Prefix.Addr().BitLen()
	base := new(big.Int).SetBytes(s.Prefix.Addr().AsSlice())
	base.Add(base, new(big.Int).Lsh(new(big.Int).SetUint64(i), uint(width-s.BlockBits)))
	a, _ := netip.AddrFromSlice(base.FillBytes(make([]byte, width/8)))
	return netip.PrefixFrom(a, s.BlockBits)
}
