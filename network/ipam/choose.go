package ipam

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
)

// DefaultPools4 returns the IPv4 pools that subnets are chosen from by default, in this order:
//
//   - 10.64.0.0/12 has 4,096 /24 subnets. It is below 10.88.0.0 to 10.255.255.255, which Podman
//     chooses from, and Kubernetes (kubeadm 10.96.0.0/12, flannel 10.244.0.0/16). It is above
//     what is popular at the beginning of 10.0.0.0/8: home routers and clouds (10.0.0.0/16),
//     QEMU and rootless engines (10.0.2.0/24), LXC (10.0.3.0/24), k3s (10.42.0.0/15).
//   - 172.16.0.0/16 is for hosts that route all of 10.0.0.0/8 into a VPN. It is the only /16 of
//     172.16.0.0/12 that Docker does not choose from.
//
// The rest of private space is 192.168.0.0/16: home routers, libvirt, and Docker in its /20
// subnets.
func DefaultPools4() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.64.0.0/12"), netip.MustParsePrefix("172.16.0.0/16")}
}

// DefaultPools6 returns the IPv6 pools that subnets are chosen from by default: one unique local
// /48, which has 65,536 /64 subnets. Its 40 bits of Global ID (RFC 4193, section 3.2) are derived
// from seed, which should differ on every host, such as the content of /etc/machine-id. The result
// does not reveal seed.
func DefaultPools6(seed []byte) []netip.Prefix {
	// Keyed, as machine-id(5) asks for.
	hash := hmac.New(sha256.New, seed)
	hash.Write([]byte("cleat network/ipam: RFC 4193 Global ID"))
	b := [16]byte{0xfd}
	copy(b[1:6], hash.Sum(nil))
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16(b), 48)}
}

// minTaken is the shortest prefix, in bits, that takes addresses from ChooseSubnet.
const minTaken = 8

// ChooseSubnet returns the first subnet with a prefix of size bits in the pools that overlaps
// none of the taken prefixes, such as those of the host's routes, of other engines' networks and
// of the caller's own. It skips pools that are smaller than a subnet. Taken prefixes shorter than
// 8 bits are ignored: they are default routes or parts of one (0.0.0.0/1, 2000::/3), not networks.
//
// The error is a *NoSubnetError if there is no such subnet.
func ChooseSubnet(pools []netip.Prefix, size int, taken []netip.Prefix) (netip.Prefix, error) {
	e := &NoSubnetError{Pools: pools, Size: size}
	for _, t := range taken {
		if t.Bits() >= minTaken && slices.ContainsFunc(pools, t.Overlaps) {
			e.Taken = append(e.Taken, t)
		}
	}
	for _, pool := range pools {
		if !pool.IsValid() || size < pool.Bits() || size > pool.Addr().BitLen() {
			continue
		}
		if p, ok := firstFree(pool.Masked(), size, e.Taken); ok {
			return p, nil
		}
	}
	return netip.Prefix{}, e
}

// firstFree tries one subnet after the other, and skips a larger taken prefix in one step. So it
// makes at most one step for each taken prefix, however large the pool is.
func firstFree(pool netip.Prefix, size int, taken []netip.Prefix) (netip.Prefix, bool) {
	p := netip.PrefixFrom(pool.Addr(), size)
	for pool.Contains(p.Addr()) {
		i := slices.IndexFunc(taken, p.Overlaps)
		if i < 0 {
			return p, true
		}
		_, last := Bounds(netip.PrefixFrom(p.Addr(), min(size, taken[i].Bits())))
		p = netip.PrefixFrom(last.Next(), size) // invalid behind the last address of the family
	}
	return netip.Prefix{}, false
}

// NoSubnetError means that ChooseSubnet found no free subnet.
type NoSubnetError struct {
	Pools []netip.Prefix
	Size  int            // bits
	Taken []netip.Prefix // the taken prefixes that overlap the pools
}

func (e *NoSubnetError) Error() string {
	text := fmt.Sprintf("no free /%d subnet in %s", e.Size, list(e.Pools, len(e.Pools), "and"))
	if len(e.Taken) > 0 {
		text += ": taken by " + list(e.Taken, len(e.Taken), "and")
	}
	return text
}
