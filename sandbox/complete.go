package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The defaults of Config. The IPv4 network is the one that QEMU and slirp4netns
// have made usual; the IPv6 one is a unique local prefix (RFC 4193), for which
// getaddrinfo prefers IPv4 where a name has both (RFC 6724 section 2.1).
const (
	defaultInterface = "cleat0"
	mostQueues       = 64
	defaultMTU       = 65520 // 64 KiB less the virtio header, and a multiple of 8 for fragments
)

var (
	defaultAddr4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 2, 100}), 24)
	defaultAddr6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x63, 0x6c, 0x65, 0x61, 0x74, 14: 1}), 64)
)

// complete fills in defaults and checks the rest.
func (c Config) complete() (Config, error) {
	if c.Interface == "" {
		c.Interface = defaultInterface
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	if c.Queues == 0 {
		c.Queues = defaultQueues(c.Limits.BufferBytes)
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.NoIPv4 && c.NoIPv6 {
		return c, configError("NoIPv6", "true", "IPv4 or IPv6: both are off")
	}
	errs := []error{
		checkName(c.Interface), c.checkMTU(), c.checkQueues(), c.checkTier(), c.checkRuntimes(),
		family{"Addr4", "Gateway4", netip.Addr.Is4, defaultAddr4, c.NoIPv4}.complete(&c.Addr4, &c.Gateway4),
		family{"Addr6", "Gateway6", is6, defaultAddr6, c.NoIPv6}.complete(&c.Addr6, &c.Gateway6),
	}
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	return c, errors.Join(c.completeDNS(), c.checkMappings(), c.checkPorts())
}

func is6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// checkName holds an interface's name against dev_valid_name (net/core/dev.c).
func checkName(name string) error {
	if len(name) >= unix.IFNAMSIZ || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00%") {
		return configError("Interface", name, "1 to 15 bytes without '/', ':', '%' or space")
	}
	return nil
}

func (c *Config) checkMTU() error {
	least := 576
	if !c.NoIPv6 {
		least = 1280
	}
	if c.MTU < least || c.MTU > defaultMTU {
		return configError("MTU", fmt.Sprint(c.MTU), fmt.Sprintf("%d to %d bytes", least, defaultMTU))
	}
	return nil
}

// defaultQueues is as many as can be busy while one Go processor is left to other
// goroutines, at most four: what four threads move is more than most links carry.
// Each wants a MiB of packet memory (0: there is enough).
func defaultQueues(bufferBytes int) int {
	n := min(max(runtime.GOMAXPROCS(0)-1, 1), 4)
	if bufferBytes > 0 {
		n = max(min(n, bufferBytes>>20), 1)
	}
	return n
}

func (c *Config) checkQueues() error {
	if c.Queues < 1 || c.Queues > mostQueues {
		return configError("Queues", fmt.Sprint(c.Queues), fmt.Sprintf("1 to %d", mostQueues))
	}
	return nil
}

func (c *Config) checkTier() error {
	switch c.Tier {
	case TierAuto, TierTUN:
		return nil
	case TierSplice, TierSeccomp:
		if c.Pcap != nil {
			return configError("Tier", string(c.Tier), "the tier tun with a capture, which sees packets of the device alone")
		}
		return nil
	}
	return configError("Tier", string(c.Tier), "tun, splice, seccomp or nothing")
}

// splices tells whether the splice tier is to be set up.
func (c *Config) splices() bool { return c.Tier != TierTUN && c.Pcap == nil }

// family completes the addresses of IPv4 or IPv6.
type family struct {
	addrField, gatewayField string
	is                      func(netip.Addr) bool
	fallback                netip.Prefix
	off                     bool
}

func (f family) complete(addr *netip.Prefix, gateway *netip.Addr) error {
	if f.off {
		*addr, *gateway = netip.Prefix{}, netip.Addr{}
		return nil
	}
	if !addr.IsValid() {
		*addr = f.fallback
	}
	if a := addr.Addr(); !f.is(a) || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Zone() != "" {
		return configError(f.addrField, addr.String(), "a unicast address of its family with the length of its network")
	}
	if !gateway.IsValid() {
		*gateway = pick(*addr, 2, addr.Addr())
	}
	if !gateway.IsValid() {
		return configError(f.gatewayField, "", "a gateway: the network of "+addr.String()+" has no room for one")
	}
	if !f.is(*gateway) || *gateway == addr.Addr() || gateway.IsUnspecified() || gateway.Zone() != "" {
		return configError(f.gatewayField, gateway.String(), "an address of its family that is not the guest's")
	}
	return nil
}

// pick is the nth address of a network, or the one after it where that is taken;
// the invalid address where there is none.
func pick(network netip.Prefix, nth int, taken ...netip.Addr) netip.Addr {
	a := network.Masked().Addr()
	for range nth {
		a = a.Next()
	}
	for contains(taken, a) {
		a = a.Next()
	}
	if next := a.Next(); !network.Contains(a) || a.Is4() && !network.Contains(next) {
		return netip.Addr{} // outside, or the broadcast address
	}
	return a
}

func contains(all []netip.Addr, a netip.Addr) bool {
	for _, b := range all {
		if a == b {
			return true
		}
	}
	return false
}

func (c *Config) completeDNS() error {
	if c.DNS.Off {
		c.DNS = DNS{Off: true}
		return nil
	}
	if c.DNS.Listen == nil {
		network, gateway := c.Addr4, c.Gateway4
		if c.NoIPv4 {
			network, gateway = c.Addr6, c.Gateway6
		}
		a := pick(network, 3, network.Addr(), gateway, c.HostLoopback4, c.HostLoopback6)
		if !a.IsValid() {
			return configError("DNS.Listen", "", "an address for the resolver: the network of "+network.String()+" has no room for one")
		}
		c.DNS.Listen = []netip.Addr{a}
	}
	for _, a := range c.DNS.Listen {
		if err := c.reachable("DNS.Listen", a); err != nil {
			return err
		}
	}
	for _, s := range c.DNS.Servers {
		if !s.Addr().IsValid() {
			return configError("DNS.Servers", s.String(), "an address and a port")
		}
	}
	return nil
}

// reachable checks an address that the guest is to send to.
func (c *Config) reachable(field string, a netip.Addr) error {
	switch {
	case !a.IsValid(), a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.Is4In6(), a == c.Addr4.Addr(), a == c.Addr6.Addr():
		return configError(field, a.String(), "a unicast address that is neither loopback nor the guest's own")
	case a.Is4() && c.NoIPv4, a.Is6() && c.NoIPv6:
		return configError(field, a.String(), "an address of a family that is not switched off")
	}
	return nil
}

func (c *Config) checkMappings() error {
	if a := c.HostLoopback4; a.IsValid() && !a.Is4() {
		return configError("HostLoopback4", a.String(), "an IPv4 address")
	}
	if a := c.HostLoopback6; a.IsValid() && !is6(a) {
		return configError("HostLoopback6", a.String(), "an IPv6 address")
	}
	if a := c.Outbound4; a.IsValid() && !a.Is4() {
		return configError("Outbound4", a.String(), "an IPv4 address")
	}
	if a := c.Outbound6; a.IsValid() && !is6(a) {
		return configError("Outbound6", a.String(), "an IPv6 address")
	}
	seen := map[netip.Addr]string{}
	for _, a := range c.DNS.Listen {
		seen[a] = "DNS.Listen"
	}
	for _, m := range c.mappings() {
		if err := c.reachable(m.field, m.Guest); err != nil {
			return err
		}
		if m.Guest.Is4() != m.Host.Is4() || m.Host.IsUnspecified() {
			return configError(m.field, m.Host.String(), "an address of the same family as "+m.Guest.String())
		}
		// The resolver and a mapping may share an address: port 53 is the resolver's.
		if other := seen[m.Guest]; other != "" && other != "DNS.Listen" {
			return configError(m.field, m.Guest.String(), "another address than "+other+" has")
		}
		seen[m.Guest] = m.field
	}
	return nil
}

// fieldMapping is a Mapping and where in Config it comes from.
type fieldMapping struct {
	Mapping
	field string
}

// mappings are all addresses that lead elsewhere.
func (c *Config) mappings() []fieldMapping {
	var all []fieldMapping
	if c.HostLoopback4.IsValid() {
		all = append(all, fieldMapping{Mapping{Guest: c.HostLoopback4, Host: netip.AddrFrom4([4]byte{127, 0, 0, 1})}, "HostLoopback4"})
	}
	if c.HostLoopback6.IsValid() {
		all = append(all, fieldMapping{Mapping{Guest: c.HostLoopback6, Host: netip.IPv6Loopback()}, "HostLoopback6"})
	}
	for _, m := range c.Mappings {
		all = append(all, fieldMapping{m, "Mappings"})
	}
	return all
}

// shown are the mappings backward: a client on the host whose address means the
// guest itself appears as what leads back to it.
func (c *Config) shown() map[netip.Addr]netip.Addr {
	back := map[netip.Addr]netip.Addr{}
	for _, m := range c.mappings() {
		if _, there := back[m.Host]; !there {
			back[m.Host] = m.Guest
		}
	}
	return back
}

func (c *Config) checkPorts() error {
	for _, f := range c.Forwards {
		if f.Protocol != TCP && f.Protocol != UDP {
			return configError("Forwards", f.Protocol.String(), "TCP or UDP")
		}
	}
	for _, o := range c.ReverseForwards {
		switch {
		case o.Protocol != TCP && o.Protocol != UDP:
			return configError("ReverseForwards", o.Protocol.String(), "TCP or UDP")
		case o.Listen.Port() == 0:
			return configError("ReverseForwards", o.Listen.String(), "a port to listen on")
		}
	}
	for _, a := range slices.Concat(c.AutoForward, c.AutoReverseForward) {
		for _, r := range append(append([]PortRange{}, a.Only...), a.Except...) {
			if r.First > r.Last || r.First == 0 {
				return configError("AutoForward", fmt.Sprintf("%d-%d", r.First, r.Last), "ports from 1, the lower one first")
			}
		}
	}
	return nil
}

func configError(field, value, want string) error {
	return &ConfigError{Field: field, Value: value, Want: want}
}
