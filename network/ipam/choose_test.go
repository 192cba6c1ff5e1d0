package ipam

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
)

func TestChooseSubnet(t *testing.T) {
	for name, tt := range map[string]struct {
		pools []netip.Prefix
		size  int
		taken []netip.Prefix
		want  string // "": none
	}{
		"nothing taken":        {prefixes("10.64.0.0/12"), 24, nil, "10.64.0.0/24"},
		"whole pool":           {prefixes("10.64.0.0/12"), 12, nil, "10.64.0.0/12"},
		"the next":             {prefixes("10.64.0.0/12"), 24, prefixes("10.64.0.0/24", "10.64.1.0/24"), "10.64.2.0/24"},
		"a gap":                {prefixes("10.64.0.0/12"), 24, prefixes("10.64.2.0/24", "10.64.0.0/24"), "10.64.1.0/24"},
		"one address":          {prefixes("10.64.0.0/12"), 24, prefixes("10.64.0.77/32"), "10.64.1.0/24"},
		"larger":               {prefixes("10.64.0.0/12"), 24, prefixes("10.64.0.0/13"), "10.72.0.0/24"},
		"larger, small wanted": {prefixes("10.64.0.0/12"), 30, prefixes("10.64.0.0/22", "10.64.4.1/32"), "10.64.4.4/30"},
		"second pool":          {prefixes("10.64.0.0/12", "172.16.0.0/16"), 24, prefixes("10.0.0.0/8"), "172.16.0.0/24"},
		"pool with host bits":  {prefixes("10.64.3.7/16"), 24, nil, "10.64.0.0/24"},
		"default route":        {prefixes("10.64.0.0/12"), 24, prefixes("0.0.0.0/0", "10.64.0.0/24"), "10.64.1.0/24"},
		"halves of one":        {prefixes("10.64.0.0/12"), 24, prefixes("0.0.0.0/1", "128.0.0.0/1"), "10.64.0.0/24"},
		"other family":         {prefixes("10.64.0.0/12"), 24, prefixes("fd00::/8"), "10.64.0.0/24"},
		"IPv6":                 {prefixes("fd00:1::/48"), 64, prefixes("fd00:1::/64", "fd00:1:0:1::5/128"), "fd00:1:0:2::/64"},
		"IPv6 pool of 2^56":    {prefixes("fd00::/8"), 64, prefixes("fd00::/9"), "fd80::/64"},
		"skips small pools":    {prefixes("10.64.0.0/25", "172.16.0.0/16"), 24, nil, "172.16.0.0/24"},
		"end of the family":    {prefixes("255.255.255.0/24"), 25, prefixes("255.255.255.0/25"), "255.255.255.128/25"},
		"full":                 {prefixes("192.0.2.0/24"), 25, prefixes("192.0.2.1/32", "192.0.2.129/32"), ""},
		"full to the end":      {prefixes("255.255.255.0/24"), 25, prefixes("255.255.255.0/24"), ""},
		"too large":            {prefixes("192.0.2.0/24"), 16, nil, ""},
		"too long":             {prefixes("192.0.2.0/24"), 33, nil, ""},
		"no pools":             {nil, 24, nil, ""},
		"zero pool":            {[]netip.Prefix{{}}, 24, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ChooseSubnet(tt.pools, tt.size, tt.taken)
			var no *NoSubnetError
			if tt.want == "" {
				if !errors.As(err, &no) {
					t.Errorf("got %s, %v", got, err)
				}
				return
			}
			if err != nil || got != prefix(tt.want) {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
}

func TestNoSubnetMessage(t *testing.T) {
	_, err := ChooseSubnet(prefixes("192.0.2.0/24", "198.51.100.0/24"), 25, prefixes("0.0.0.0/0", "192.0.0.0/16", "198.51.100.0/24", "203.0.113.0/24"))
	if want := "no free /25 subnet in 192.0.2.0/24 and 198.51.100.0/24: taken by 192.0.0.0/16 and 198.51.100.0/24"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// FuzzChooseSubnet compares with trying one subnet after the other.
func FuzzChooseSubnet(f *testing.F) {
	f.Add(uint8(24), []byte{0, 24, 1, 24, 2, 25, 3, 32})
	f.Add(uint8(20), []byte{0, 16, 16, 20, 255, 20})
	f.Add(uint8(26), []byte{0, 0, 1, 7, 2, 8})
	f.Fuzz(func(t *testing.T, size uint8, taken []byte) {
		pool := prefix("10.64.0.0/16")
		bits := 16 + int(size%13)
		var all []netip.Prefix
		for pair := range slices.Chunk(taken[:len(taken)/2*2], 2) {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, pair[0], pair[1]}), int(pair[1]%33)).Masked())
		}
		var want netip.Prefix
		for n := uint64(0); n < 1<<16 && !want.IsValid(); n += 1 << (32 - bits) {
			p := netip.PrefixFrom(plus(pool.Addr(), n), bits)
			if !slices.ContainsFunc(all, func(t netip.Prefix) bool { return t.Bits() >= 8 && t.Overlaps(p) }) {
				want = p
			}
		}
		if got, err := ChooseSubnet([]netip.Prefix{pool}, bits, all); got != want || (err == nil) != want.IsValid() {
			t.Errorf("got %s, %v, want %s; taken %v", got, err, want, all)
		}
	})
}

// The default pools avoid those of Docker and Podman, and are private.
func TestDefaultPools(t *testing.T) {
	others := prefixes(
		// Docker: daemon/libnetwork/ipamutils.
		"172.17.0.0/16", "172.18.0.0/16", "172.19.0.0/16", "172.20.0.0/14", "172.24.0.0/14", "172.28.0.0/14", "192.168.0.0/16",
		// Podman: containers.conf(5), default_subnet and default_subnet_pools.
		"10.88.0.0/16", "10.89.0.0/16", "10.90.0.0/15", "10.92.0.0/14", "10.96.0.0/11", "10.128.0.0/9",
		// kubeadm, flannel, k3s, OpenShift, LXC, QEMU, AWS.
		"10.96.0.0/12", "10.244.0.0/16", "10.42.0.0/15", "10.128.0.0/14", "172.30.0.0/16", "10.0.3.0/24", "10.0.2.0/24", "172.31.0.0/16",
	)
	for _, pool := range DefaultPools4() {
		if !pool.Addr().IsPrivate() || slices.ContainsFunc(others, pool.Overlaps) {
			t.Errorf("%s overlaps another program's", pool)
		}
	}
	seed := []byte("0123456789abcdef0123456789abcdef")
	got := DefaultPools6(seed)
	if want := prefixes("fd3f:2f96:5c::/48"); !slices.Equal(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	if other := DefaultPools6([]byte("0123456789abcdef0123456789abcdee")); slices.Equal(other, got) || !prefix("fd00::/8").Overlaps(other[0]) {
		t.Errorf("got %s", other)
	}
	if subnet, err := ChooseSubnet(got, 64, nil); err != nil || subnet != netip.PrefixFrom(got[0].Addr(), 64) {
		t.Errorf("got %s, %v", subnet, err)
	}
}
