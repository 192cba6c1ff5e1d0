package sandbox

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"cleat/usernet/lan"

	"golang.org/x/sys/unix"
)

// Defaults and limits of Config. The IPv4 network is the one that QEMU and slirp4netns have
// made common. The IPv6 network has a unique local prefix (RFC 4193), so that getaddrinfo
// prefers IPv4 for names with both (RFC 6724 section 2.1).
const (
	defaultInterface = "cleat0"
	maxQueues        = 64
	defaultMTU       = 65520 // 64 KiB less the virtio header, and a multiple of 8 for fragments
)

var (
	defaultAddr4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 2, 100}), 24)
	defaultAddr6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x63, 0x6c, 0x65, 0x61, 0x74, 14: 1}), 64)
	loopback4    = netip.AddrFrom4([4]byte{127, 0, 0, 1})
)

// complete fills in defaults and checks the rest.
func (c Config) complete() (Config, error) {
	c.Interface = cmp.Or(c.Interface, defaultInterface)
	c.MTU = cmp.Or(c.MTU, defaultMTU)
	c.Queues = cmp.Or(c.Queues, defaultQueues(c.Limits.BufferBytes))
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.NoIPv4 && c.NoIPv6 {
		return c, configError("NoIPv6", "true", "IPv4 or IPv6: both are off")
	}
	errs := []error{
		c.checkDevice(), c.completeEthernet(), c.checkTier(),
		family{"Addr4", "Gateway4", netip.Addr.Is4, defaultAddr4, c.NoIPv4}.complete(&c.Addr4, &c.Gateway4),
		family{"Addr6", "Gateway6", is6, defaultAddr6, c.NoIPv6}.complete(&c.Addr6, &c.Gateway6),
	}
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	return c, errors.Join(c.completeDNS(), c.checkMappings(), c.checkPorts())
}

func is6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// checkDevice checks the device's name, as dev_valid_name does (net/core/dev.c), its MTU and
// its queues.
func (c *Config) checkDevice() error {
	minMTU := 576
	if !c.NoIPv6 {
		minMTU = 1280
	}
	name, errs := c.Interface, []error(nil)
	if len(name) >= unix.IFNAMSIZ || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00%") {
		errs = append(errs, configError("Interface", name, "1 to 15 bytes without '/', ':', '%' or space"))
	}
	if c.MTU < minMTU || c.MTU > defaultMTU {
		errs = append(errs, configError("MTU", fmt.Sprint(c.MTU), fmt.Sprintf("%d to %d bytes", minMTU, defaultMTU)))
	}
	if c.Queues < 1 || c.Queues > maxQueues {
		errs = append(errs, configError("Queues", fmt.Sprint(c.Queues), fmt.Sprintf("1 to %d", maxQueues)))
	}
	return errors.Join(errs...)
}

// completeEthernet completes and checks the device's link layer.
func (c *Config) completeEthernet() error {
	c.Device = cmp.Or(c.Device, DeviceTUN)
	e := &c.Ethernet
	switch c.Device {
	case DeviceTAP:
	case DeviceTUN:
		if !reflect.ValueOf(*e).IsZero() {
			return configError("Ethernet", "", "DeviceTAP with it: a TUN has no Ethernet")
		}
		return nil
	default:
		return configError("Device", string(c.Device), "tun or tap")
	}
	e.GatewayMAC = cmp.Or(e.GatewayMAC, lan.DefaultMAC)
	if e.MAC == (MAC{}) {
		e.MAC = randomMAC(e.GatewayMAC)
	}
	var errs []error
	for _, f := range []struct {
		name string
		mac  MAC
	}{{"Ethernet.MAC", e.MAC}, {"Ethernet.GatewayMAC", e.GatewayMAC}} {
		if !f.mac.Unicast() {
			errs = append(errs, configError(f.name, f.mac.String(), "the address of one station: the lowest bit of its first byte is 0"))
		}
	}
	if e.MAC == e.GatewayMAC {
		errs = append(errs, configError("Ethernet.MAC", e.MAC.String(), "an address other than that of the gateway"))
	}
	if _, err := lan.New(lan.Config{Search: e.Search, Hostname: e.Hostname, FQDN: e.FQDN}); err != nil {
		errs = append(errs, configError("Ethernet", err.Error(), "names that DHCP can carry"))
	}
	return errors.Join(errs...)
}

// randomMAC returns a locally administered address, as the kernel gives one to a new device
// (eth_random_addr, include/linux/etherdevice.h).
func randomMAC(other MAC) MAC {
	for {
		var m MAC
		_, _ = rand.Read(m[:]) // never fails
		const group, local = 1, 2
		if m[0] = m[0]&^group | local; m != other {
			return m
		}
	}
}

// defaultQueues leaves one Go processor to other goroutines. Four threads move more than most
// links carry. Each queue needs a MiB of packet memory; bufferBytes is 0 for the default,
// which is enough.
func defaultQueues(bufferBytes int) int {
	n := min(max(runtime.GOMAXPROCS(0)-1, 1), 4)
	if bufferBytes > 0 {
		n = max(min(n, bufferBytes>>20), 1)
	}
	return n
}

func (c *Config) checkTier() error {
	switch {
	case !slices.Contains([]Tier{TierAuto, TierTUN, TierSplice, TierSeccomp}, c.Tier):
		return configError("Tier", string(c.Tier), "tun, splice, seccomp or nothing")
	case c.Pcap != nil && (c.Tier == TierSplice || c.Tier == TierSeccomp):
		return configError("Tier", string(c.Tier), "the tier tun with a capture, which sees only packets of the device")
	case c.RuntimeListener != nil && c.Tier != TierSeccomp:
		return configError("RuntimeListener", c.RuntimeListener.Addr().String(), "the seccomp tier with it")
	}
	return nil
}

func (c *Config) useSplice() bool { return c.Tier != TierTUN && c.Pcap == nil }

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
		*gateway = nthAddr(*addr, 2, addr.Addr())
	}
	if !gateway.IsValid() {
		return configError(f.gatewayField, "", "a gateway: the network of "+addr.String()+" has no room for one")
	}
	if !f.is(*gateway) || *gateway == addr.Addr() || gateway.IsUnspecified() || gateway.Zone() != "" {
		return configError(f.gatewayField, gateway.String(), "an address of its family that is not the guest's")
	}
	return nil
}

// nthAddr returns the nth address of a network, or the first free one after it. The result is
// invalid if there is none.
func nthAddr(network netip.Prefix, n int, taken ...netip.Addr) netip.Addr {
	a := network.Masked().Addr()
	for range n {
		a = a.Next()
	}
	for slices.Contains(taken, a) {
		a = a.Next()
	}
	if !network.Contains(a) || a.Is4() && !network.Contains(a.Next()) {
		return netip.Addr{} // outside the network, or its broadcast address
	}
	return a
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
		a := nthAddr(network, 3, network.Addr(), gateway, c.HostLoopback4, c.HostLoopback6)
		if !a.IsValid() {
			return configError("DNS.Listen", "", "an address for the resolver: the network of "+network.String()+" has no room for one")
		}
		c.DNS.Listen = []netip.Addr{a}
	}
	for _, a := range c.DNS.Listen {
		if err := c.checkDestination("DNS.Listen", a); err != nil {
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

// checkDestination checks an address that the guest sends to.
func (c *Config) checkDestination(field string, a netip.Addr) error {
	switch {
	case !a.IsValid(), a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.Is4In6(), a == c.Addr4.Addr(), a == c.Addr6.Addr():
		return configError(field, a.String(), "a unicast address that is neither loopback nor the guest's own")
	case a.Is4() && c.NoIPv4, a.Is6() && c.NoIPv6:
		return configError(field, a.String(), "an address of a family that is not switched off")
	}
	return nil
}

func (c *Config) checkMappings() error {
	for _, f := range []struct {
		field string
		addr  netip.Addr
		is    func(netip.Addr) bool
		want  string
	}{
		{"HostLoopback4", c.HostLoopback4, netip.Addr.Is4, "an IPv4 address"}, {"HostLoopback6", c.HostLoopback6, is6, "an IPv6 address"},
		{"Outbound4", c.Outbound4, netip.Addr.Is4, "an IPv4 address"}, {"Outbound6", c.Outbound6, is6, "an IPv6 address"},
	} {
		if f.addr.IsValid() && !f.is(f.addr) {
			return configError(f.field, f.addr.String(), f.want)
		}
	}
	seen := map[netip.Addr]string{} // not DNS.Listen: only port 53 of such an address is the resolver's
	for _, m := range c.mappings() {
		if err := c.checkDestination(m.field, m.Guest); err != nil {
			return err
		}
		if m.Guest.Is4() != m.Host.Is4() || m.Host.IsUnspecified() {
			return configError(m.field, m.Host.String(), "an address of the same family as "+m.Guest.String())
		}
		if other := seen[m.Guest]; other != "" {
			return configError(m.field, m.Guest.String(), "an address other than that of "+other)
		}
		seen[m.Guest] = m.field
	}
	return nil
}

// fieldMapping is a Mapping and the field of Config that it comes from.
type fieldMapping struct {
	Mapping
	field string
}

// mappings returns all addresses that lead elsewhere.
func (c *Config) mappings() []fieldMapping {
	var all []fieldMapping
	if c.HostLoopback4.IsValid() {
		all = append(all, fieldMapping{Mapping{Guest: c.HostLoopback4, Host: loopback4}, "HostLoopback4"})
	}
	if c.HostLoopback6.IsValid() {
		all = append(all, fieldMapping{Mapping{Guest: c.HostLoopback6, Host: netip.IPv6Loopback()}, "HostLoopback6"})
	}
	for _, m := range c.Mappings {
		all = append(all, fieldMapping{m, "Mappings"})
	}
	return all
}

// shown returns the mappings reversed: how the addresses of clients on the host appear to the
// guest.
func (c *Config) shown() map[netip.Addr]netip.Addr {
	reversed := map[netip.Addr]netip.Addr{}
	for _, m := range c.mappings() {
		if _, ok := reversed[m.Host]; !ok {
			reversed[m.Host] = m.Guest
		}
	}
	return reversed
}

func (c *Config) checkPorts() error {
	for _, f := range c.Forwards {
		if f.Protocol != TCP && f.Protocol != UDP {
			return configError("Forwards", f.Protocol.String(), "TCP or UDP")
		}
	}
	for _, r := range c.ReverseForwards {
		switch {
		case r.Protocol != TCP && r.Protocol != UDP:
			return configError("ReverseForwards", r.Protocol.String(), "TCP or UDP")
		case r.Listen.Port() == 0:
			return configError("ReverseForwards", r.Listen.String(), "a port to listen on")
		}
	}
	for _, a := range slices.Concat(c.AutoForward, c.AutoReverseForward) {
		for _, r := range slices.Concat(a.Only, a.Except) {
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
