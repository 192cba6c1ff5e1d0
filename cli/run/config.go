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

// config turns the flags into what the library takes. It opens nothing but
// the policy file.
func (f *flags) config() (sandbox.Config, policy.Rules, error) {
	cfg := sandbox.Config{Interface: f.link, MTU: f.mtu, Queues: f.queues, MapRoot: f.mapRoot}
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

// rules are those of --policy, then those of --allow and --deny, and what
// --host-sockets says.
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
	may, err := policy.ParseHostSockets(f.hostSockets)
	switch {
	case err != nil:
		return rules, hint.With(hint.Usagef("--host-sockets %q: want none, tcp or tcp,udp", f.hostSockets), hint.DidYouMean(f.hostSockets, []string{"none", "tcp", "tcp,udp"}))
	case rules.HostSockets != policy.HostSocketsAsked && rules.HostSockets != may:
		return rules, hint.Usagef("--host-sockets %s: the policy %s says %s: leave one of them out", may, f.policy, rules.HostSockets)
	}
	rules.HostSockets = may
	return rules, nil
}

// checkLoopback refuses an --allow of loopback addresses that nothing leads to:
// inside they are the command's own.
func (f *flags) checkLoopback(cfg *sandbox.Config) error {
	leads := func(a netip.Addr) bool {
		if a.Is4() && cfg.HostLoopback4.IsValid() || a.Is6() && cfg.HostLoopback6.IsValid() {
			return true
		}
		return slices.ContainsFunc(cfg.Mappings, func(m sandbox.Mapping) bool { return m.Host.IsLoopback() && m.Host.Is4() == a.Is4() })
	}
	for _, text := range f.allow {
		if rule, err := policy.ParseRule(true, text); err == nil && rule.Prefix.Addr().IsLoopback() && !leads(rule.Prefix.Addr()) {
			return hint.With(hint.Usagef("--allow %s: inside, that is the command's own loopback, which it reaches anyhow", text),
				"for the host's add e.g. --host-loopback 192.0.2.1, and let the command connect to that")
		}
	}
	return nil
}

// RuleHint shows what rules look like.
func RuleHint(err error) error {
	return hint.With(err, "rules look like 192.0.2.0/24, '[2001:db8::1]:443/tcp', example.com:80,443 or '*.example.com'")
}

// ReadPolicy reads a policy file, "-" for standard input.
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
	for _, text := range f.addr {
		switch text {
		case "ipv4=off":
			cfg.NoIPv4 = true
			continue
		case "ipv6=off":
			cfg.NoIPv6 = true
			continue
		}
		p, err := parsePrefix(text)
		if err != nil {
			return hint.With(hint.Usagef("--addr %q: want an address with the length of its network, ipv4=off or ipv6=off", text), "for example --addr 10.9.0.5/24 --addr ipv6=off")
		}
		if p.Addr().Is4() && p.Bits() < 31 && p.Addr() == p.Masked().Addr() {
			return hint.With(hint.Usagef("--addr %s: that is the network, not an address in it", text), fmt.Sprintf("for example --addr %s/%d", p.Addr().Next(), p.Bits()))
		}
		if err := oneEach("addr", text, &cfg.Addr4, &cfg.Addr6, p, p.Addr().Is4()); err != nil {
			return err
		}
	}
	switch {
	case cfg.NoIPv4 && cfg.NoIPv6:
		return hint.Usagef("--addr: both families are off")
	case cfg.NoIPv4 && cfg.Addr4.IsValid(), cfg.NoIPv6 && cfg.Addr6.IsValid():
		return hint.Usagef("--addr: the family of an address is off")
	}
	return nil
}

// parsePrefix reads an address with the length of its network.
func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() {
		err = errors.New("IPv4 in IPv6")
	}
	return p, err
}

// parseAddr reads an address without a zone.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err == nil && (a.Zone() != "" || a.Is4In6()) {
		err = fmt.Errorf("address %q: zones and IPv4 in IPv6 can't be used here", text)
	}
	return a, err
}

// oneEach stores v at the place of its family, once.
func oneEach[T comparable](flag, text string, at4, at6 *T, v T, is4 bool) error {
	at := at6
	if is4 {
		at = at4
	}
	var none T
	if *at != none {
		return hint.Usagef("--%s %q: one of each family can be given", flag, text)
	}
	*at = v
	return nil
}

func (f *flags) setGateways(cfg *sandbox.Config) error {
	for _, text := range f.gateway {
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
				return hint.Usagef("--dns off: nothing else can be given with it")
			}
			cfg.DNS.Off = true
			return nil
		}
		server, err := parseServer(text)
		if err != nil {
			return hint.With(hint.Usagef("--dns %q: want an IP address, with a port if it isn't %d, or off", text, dnsPort), "for example --dns 192.0.2.53 or --dns '[2001:db8::53]:5353'")
		}
		cfg.DNS.Servers = append(cfg.DNS.Servers, server)
	}
	return nil
}

// parseServer reads ADDR, [ADDR]:PORT or ADDR:PORT.
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
				return hint.Usagef("--host-loopback off: nothing else can be given with it")
			}
			return nil
		}
		a, err := parseAddr(text)
		if err != nil || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
			return hint.With(hint.Usagef("--host-loopback %q: want an address that the command can send to, or off", text), "for example --host-loopback 192.0.2.1")
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
			return hint.With(hint.Usagef("--map %q: want two addresses of one family", text), "for example --map 192.0.2.7=198.51.100.7: to 192.0.2.7 means to 198.51.100.7")
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
				return hint.With(hint.Usagef("--outbound %s: no address of this host", text), "`ip -brief address` lists them")
			}
			continue
		}
		if cfg.OutboundInterface != "" {
			return hint.Usagef("--outbound %q: one link can be given", text)
		}
		if _, err := net.InterfaceByName(text); err != nil {
			return hint.With(hint.Usagef("--outbound %q: neither an address nor a link of this host", text), "`ip -brief address` lists them")
		}
		cfg.OutboundInterface = text
	}
	return nil
}

// ownAddress tells whether a socket can be bound to an address.
func ownAddress(a netip.Addr) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// checkFamilies refuses what needs a family that is off.
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
				return hint.Usagef("--%s: the family of %s is off (--addr)", flag, a)
			}
		}
	}
	return nil
}

// namespace reads the value of --netns.
func (f *flags) namespace() (sandbox.Namespace, error) {
	if pid, err := strconv.Atoi(f.netns); err == nil {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/ns", pid)); pid <= 0 || err != nil {
			return sandbox.Namespace{}, hint.With(hint.Usagef("--netns %s: there is no such process", f.netns), namespaceHint)
		}
		return sandbox.Namespace{PID: pid}, nil
	}
	path := f.netns
	if !strings.Contains(path, "/") {
		path = "/run/netns/" + path
	}
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return sandbox.Namespace{}, hint.With(hint.Usagef("--netns %s: there is no %s", f.netns, path), namespaceHint)
		}
		return sandbox.Namespace{}, fmt.Errorf("--netns %s: %w", f.netns, err)
	}
	return sandbox.Namespace{Path: path}, nil
}

const namespaceHint = "give the id of a process in it, or a path such as /proc/PID/ns/net"
