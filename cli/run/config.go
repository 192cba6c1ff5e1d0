package run

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"cleat/cli/hint"
	"cleat/policy"
	"cleat/sandbox"
)

const (
	defaultMTU = 65520 // the largest that the device takes
	dnsPort    = 53
)

// config returns the configuration and the rules that the flags ask for. It opens only the
// policy file.
func (f *flags) config() (sandbox.Config, policy.Rules, error) {
	cfg := sandbox.Config{Interface: f.interfaceName, Device: sandbox.Device(f.device), MTU: f.mtu, Queues: f.queues, MapRoot: f.mapRoot}
	if f.tier != "auto" {
		cfg.Tier = sandbox.Tier(f.tier)
	}
	rules, err := f.rules()
	if err != nil {
		return cfg, rules, err
	}
	for _, text := range f.publish {
		if err := f.published.Add(text); err != nil {
			return cfg, rules, err
		}
	}
	cfg.Forwards, cfg.AutoForward = f.published.Forwards, f.published.Auto
	if f.mtu == 0 {
		return cfg, rules, hint.Usagef("--mtu 0: want 576 to 65520 bytes, 1280 with IPv6")
	}
	for _, set := range []func(*sandbox.Config) error{
		f.setAddresses, f.setGateways, f.setDNS, f.setHostLoopback, f.setMappings, f.setOutbound, f.checkFamilies,
	} {
		if err := set(&cfg); err != nil {
			return cfg, rules, err
		}
	}
	return cfg, rules, f.checkLoopback(&cfg)
}

// rules returns the rules of --policy, followed by those of --allow and --deny, with the value
// of --host-sockets.
func (f *flags) rules() (policy.Rules, error) {
	var rules policy.Rules
	if f.policy != "" {
		var err error
		if rules, err = ReadPolicy(f.policy); err != nil {
			return rules, err
		}
	}
	for _, r := range []struct {
		flag  string
		allow bool
		texts []string
	}{{"allow", true, f.allow}, {"deny", false, f.deny}} {
		for _, text := range r.texts {
			rule, err := policy.ParseRule(r.allow, text)
			if err != nil {
				return rules, RuleHint(hint.Usagef("--%s: %w", r.flag, err))
			}
			rules.Rules = append(rules.Rules, rule)
		}
	}
	if f.hostSockets == "" {
		return rules, nil
	}
	given, err := policy.ParseHostSockets(f.hostSockets)
	switch {
	case err != nil:
		return rules, hint.With(hint.Usagef("--host-sockets %q: want none, tcp or tcp,udp", f.hostSockets), hint.DidYouMean(f.hostSockets, []string{"none", "tcp", "tcp,udp"}))
	case rules.HostSockets != policy.HostSocketsAsked && rules.HostSockets != given:
		return rules, hint.Usagef("--host-sockets %s: the policy %s has %s: leave one of them out", given, f.policy, rules.HostSockets)
	}
	rules.HostSockets = given
	return rules, nil
}

// checkLoopback returns an error if an --allow names loopback addresses of the host that
// nothing maps: inside, they are the command's own.
func (f *flags) checkLoopback(cfg *sandbox.Config) error {
	mapped := func(a netip.Addr) bool {
		if a.Is4() && cfg.HostLoopback4.IsValid() || a.Is6() && cfg.HostLoopback6.IsValid() {
			return true
		}
		return slices.ContainsFunc(cfg.Mappings, func(m sandbox.Mapping) bool { return m.Host.IsLoopback() && m.Host.Is4() == a.Is4() })
	}
	for _, text := range f.allow {
		if rule, err := policy.ParseRule(true, text); err == nil && rule.Prefix.Addr().IsLoopback() && !mapped(rule.Prefix.Addr()) {
			return hint.With(hint.Usagef("--allow %s: inside, that is the command's own loopback, which it can always reach", text),
				"for the host's loopback, add e.g. --host-loopback 192.0.2.1 and connect to that address")
		}
	}
	return nil
}

// RuleHint adds examples of rules to an error.
func RuleHint(err error) error {
	return hint.With(err, "rules look like 192.0.2.0/24, '[2001:db8::1]:443/tcp', example.com:80,443 or '*.example.com'")
}

// ReadPolicy reads a policy file, or standard input for "-".
func ReadPolicy(name string) (policy.Rules, error) {
	file := os.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return policy.Rules{}, hint.Usage(fmt.Errorf("read policy: %w", err))
		}
		defer file.Close()
	}
	rules, err := policy.Parse(name, file)
	if err != nil && errors.As(err, new(*policy.FileError)) {
		return rules, hint.Usage(err)
	}
	return rules, err
}

func (f *flags) setAddresses(cfg *sandbox.Config) error {
	for _, text := range f.addresses {
		switch text {
		case "ipv4=off":
			cfg.NoIPv4 = true
			continue
		case "ipv6=off":
			cfg.NoIPv6 = true
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return hint.With(hint.Usagef("--addr %q: want an address with a prefix length, ipv4=off or ipv6=off", text), "e.g. --addr 10.9.0.5/24 --addr ipv6=off")
		}
		if p.Addr().Is4() && p.Bits() < 31 && p.Addr() == p.Masked().Addr() {
			return hint.With(hint.Usagef("--addr %s: this is the network, not an address in it", text), fmt.Sprintf("e.g. --addr %s/%d", p.Addr().Next(), p.Bits()))
		}
		if err := oneEach("addr", text, &cfg.Addr4, &cfg.Addr6, p, p.Addr().Is4()); err != nil {
			return err
		}
	}
	switch {
	case cfg.NoIPv4 && cfg.NoIPv6:
		return hint.Usagef("--addr: both families are off")
	case cfg.NoIPv4 && cfg.Addr4.IsValid(), cfg.NoIPv6 && cfg.Addr6.IsValid():
		return hint.Usagef("--addr: an address of a family that is off")
	}
	return nil
}

// parseAddr parses an address without a zone.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err == nil && (a.Zone() != "" || a.Is4In6()) {
		err = fmt.Errorf("address %q: want one without a zone that is not IPv4-mapped", text)
	}
	return a, err
}

// oneEach stores v in at4 or at6. It returns an error if there is a value already.
func oneEach[T comparable](flag, text string, at4, at6 *T, v T, is4 bool) error {
	at := at6
	if is4 {
		at = at4
	}
	var none T
	if *at != none {
		return hint.Usagef("--%s %q: only one address of each family is possible", flag, text)
	}
	*at = v
	return nil
}

func (f *flags) setGateways(cfg *sandbox.Config) error {
	for _, text := range f.gateways {
		a, err := parseAddr(text)
		if err != nil {
			return hint.Usagef("--gateway %q: want an IP address", text)
		}
		if err := oneEach("gateway", text, &cfg.Gateway4, &cfg.Gateway6, a, a.Is4()); err != nil {
			return err
		}
	}
	return nil
}

func (f *flags) setDNS(cfg *sandbox.Config) error {
	for _, text := range f.dns {
		if text == "off" {
			if len(f.dns) > 1 {
				return hint.Usagef("--dns off can't be combined with servers")
			}
			cfg.DNS.Off = true
			return nil
		}
		server, err := parseServer(text)
		if err != nil {
			return hint.With(hint.Usagef("--dns %q: want an IP address, with a port unless it is %d, or off", text, dnsPort), "e.g. --dns 192.0.2.53 or --dns '[2001:db8::53]:5353'")
		}
		cfg.DNS.Servers = append(cfg.DNS.Servers, server)
	}
	return nil
}

// parseServer parses ADDRESS or ADDRESS:PORT, with an IPv6 address in brackets.
func parseServer(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, dnsPort), nil
	}
	s, err := netip.ParseAddrPort(text)
	if err == nil && s.Port() == 0 {
		err = errors.New("port 0")
	}
	return s, err
}

func (f *flags) setHostLoopback(cfg *sandbox.Config) error {
	for _, text := range f.hostLoopback {
		if text == "off" {
			if len(f.hostLoopback) > 1 {
				return hint.Usagef("--host-loopback off can't be combined with addresses")
			}
			return nil
		}
		a, err := parseAddr(text)
		if err != nil || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
			return hint.With(hint.Usagef("--host-loopback %q: want a unicast address that is not loopback, or off", text), "e.g. --host-loopback 192.0.2.1")
		}
		if err := oneEach("host-loopback", text, &cfg.HostLoopback4, &cfg.HostLoopback6, a, a.Is4()); err != nil {
			return err
		}
	}
	return nil
}

func (f *flags) setMappings(cfg *sandbox.Config) error {
	for _, text := range f.mappings {
		inside, host, _ := strings.Cut(text, "=")
		a, errA := parseAddr(inside)
		b, errB := parseAddr(host)
		if errA != nil || errB != nil || a.Is4() != b.Is4() {
			return hint.With(hint.Usagef("--map %q: want two addresses of one family", text), "e.g. --map 192.0.2.7=198.51.100.7 sends traffic for 192.0.2.7 to 198.51.100.7")
		}
		cfg.Mappings = append(cfg.Mappings, sandbox.Mapping{Guest: a, Host: b})
	}
	return nil
}

func (f *flags) setOutbound(cfg *sandbox.Config) error {
	for _, text := range f.outbound {
		if a, err := parseAddr(text); err == nil {
			if err := oneEach("outbound", text, &cfg.Outbound4, &cfg.Outbound6, a, a.Is4()); err != nil {
				return err
			}
			if !ownAddress(a) {
				return hint.With(hint.Usagef("--outbound %s: not an address of this host", text), "`ip -brief address` lists addresses and links")
			}
			continue
		}
		if cfg.OutboundInterface != "" {
			return hint.Usagef("--outbound %q: only one link is possible", text)
		}
		if _, err := net.InterfaceByName(text); err != nil {
			return hint.With(hint.Usagef("--outbound %q: neither an address nor a link of this host", text), "`ip -brief address` lists addresses and links")
		}
		cfg.OutboundInterface = text
	}
	return nil
}

// ownAddress reports whether a socket can be bound to an address.
func ownAddress(a netip.Addr) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// checkFamilies returns an error if a flag has an address of a family that is off.
func (f *flags) checkFamilies(cfg *sandbox.Config) error {
	off := func(a netip.Addr) bool {
		return a.IsValid() && (cfg.NoIPv4 && a.Is4() || cfg.NoIPv6 && a.Is6())
	}
	addresses := map[string][]netip.Addr{
		"gateway":       {cfg.Gateway4, cfg.Gateway6},
		"host-loopback": {cfg.HostLoopback4, cfg.HostLoopback6},
		"outbound":      {cfg.Outbound4, cfg.Outbound6},
	}
	for _, a := range cfg.AutoForward {
		addresses["publish"] = append(addresses["publish"], a.Listen)
	}
	for _, m := range cfg.Mappings {
		addresses["map"] = append(addresses["map"], m.Guest)
	}
	for _, p := range cfg.Forwards {
		addresses["publish"] = append(addresses["publish"], p.Listen.Addr())
	}
	for _, flag := range []string{"gateway", "host-loopback", "outbound", "publish", "map"} {
		for _, a := range addresses[flag] {
			if off(a) {
				return hint.Usagef("--%s: the family of %s is off by --addr", flag, a)
			}
		}
	}
	return nil
}

// namespace returns the namespace of --netns.
func (f *flags) namespace() (sandbox.Namespace, error) {
	if pid, err := strconv.Atoi(f.netns); err == nil {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/ns", pid)); pid <= 0 || err != nil {
			return sandbox.Namespace{}, hint.With(hint.Usagef("--netns %s: no such process", f.netns), namespaceHint)
		}
		return sandbox.Namespace{PID: pid}, nil
	}
	path := f.netns
	if !strings.Contains(path, "/") {
		path = "/run/netns/" + path
	}
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return sandbox.Namespace{}, hint.With(hint.Usagef("--netns %s: no such file: %s", f.netns, path), namespaceHint)
		}
		return sandbox.Namespace{}, fmt.Errorf("--netns %s: %w", f.netns, err)
	}
	return sandbox.Namespace{Path: path}, nil
}

const namespaceHint = "use the id of a process in the namespace, or a path such as /proc/PID/ns/net"
