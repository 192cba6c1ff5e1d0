package usernettest

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Cleat is our own data path in one of its tiers, by command line: the program at
// the given path.
func Cleat(program, tier string) Path {
	return Path{
		Name: "cleat " + tier, Version: "this",
		Lacks: map[Ability]string{DNS6: "the resolver has an IPv4 address, unless IPv4 is off"},
		Start: func(ctx context.Context, s *Site, o Options) (*Instance, error) {
			return startCleat(ctx, []string{program, "run", "--tier", tier}, s, o)
		},
	}
}

// Addresses inside, as cleat run chooses them, and one of ours.
var (
	cleatNameserver = map[Family]netip.AddrPort{V4: netip.MustParseAddrPort("10.0.2.3:53")}
	cleatLoopback   = map[Family]netip.Addr{V4: netip.MustParseAddr("192.0.2.200"), V6: netip.MustParseAddr("2001:db8:1::200")}
)

func startCleat(ctx context.Context, args []string, s *Site, o Options) (*Instance, error) {
	args = append(args, "--netns", s.Netns, "--mtu", strconv.Itoa(o.mtu()), "--control", "off", "--verbose")
	families := []Family{V4, V6}
	if o.mtu() < minMTU6 {
		families = families[:1]
		args = append(args, "--addr", "ipv6=off")
	}
	for _, fw := range o.Forwards {
		args = append(args, "--publish", fw.cleat())
	}
	if o.Auto {
		args = append(args, "--publish", "auto")
	}
	for _, r := range o.Rules {
		flag := "--deny"
		if r.Allow {
			flag = "--allow"
		}
		args = append(args, flag, r.cleat())
	}
	if o.Loopback {
		args = append(args, "--host-loopback", fmt.Sprintf("%s,%s", cleatLoopback[V4], cleatLoopback[V6]))
	}
	i, err := s.Launch(args)
	if err != nil {
		return nil, err
	}
	i.Device, i.Nameserver, i.Loopback = "cleat0", cleatNameserver, cleatLoopback
	if err := s.configured(ctx, i, families...); err != nil {
		return nil, err
	}
	if len(o.Forwards) == 0 {
		return i, nil
	}
	return i, s.AwaitPort(ctx, i, o.Forwards[len(o.Forwards)-1])
}

// cleat is a forward as --publish takes it.
func (f Forward) cleat() string {
	var b strings.Builder
	switch {
	case f.Addr.Is4():
		fmt.Fprintf(&b, "%s:", f.Addr)
	case f.Addr.Is6():
		fmt.Fprintf(&b, "[%s]:", f.Addr)
	}
	last := f.Count - 1
	fmt.Fprintf(&b, "%d-%d:%d-%d/%s", f.Port, int(f.Port)+last, f.To, int(f.To)+last, f.Proto)
	return b.String()
}

// cleat is a rule as --allow and --deny take it.
func (r Rule) cleat() string {
	text := r.Target
	if r.Ports != "" {
		text += ":" + r.Ports
	}
	if r.Proto != "" {
		text += "/" + r.Proto
	}
	return text
}
