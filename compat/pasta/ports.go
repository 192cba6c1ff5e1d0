package pasta

import (
	"errors"
	"fmt"
	"net/netip"

	"cleat/compat/portspec"
	"cleat/sandbox"
)

// direction is one of -t, -u, -T and -U.
type direction struct {
	option   string
	protocol sandbox.Protocol
	outward  bool
	off      bool // the protocol is disabled
	texts    []string
}

// ports turns port specifications into forwards.
func (p *planner) ports() error {
	o := p.o
	for _, d := range []direction{
		{"-t", sandbox.TCP, false, o.NoTCP, o.TCP},
		{"-u", sandbox.UDP, false, o.NoUDP, o.UDP},
		{"-T", sandbox.TCP, true, o.NoTCP, o.TCPOut},
		{"-U", sandbox.UDP, true, o.NoUDP, o.UDPOut},
	} {
		specs, err := d.specs(p.h.Ephemeral)
		if err != nil {
			return err
		}
		for _, s := range specs {
			if err := p.forward(d, s); err != nil {
				return fmt.Errorf("%s %w", d.option, err)
			}
		}
	}
	return nil
}

// specs parses the specifications; the default is auto.
func (d direction) specs(ephemeral portspec.Ports) ([]portspec.Spec, error) {
	if len(d.texts) == 0 && !d.off {
		s, err := portspec.Parse("auto", ephemeral)
		return []portspec.Spec{s}, err
	}
	var specs []portspec.Spec
	for _, text := range d.texts {
		s, err := portspec.Parse(text, ephemeral)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", d.option, err)
		case s.None && len(specs) > 0:
			return nil, fmt.Errorf("%s none conflicts with previous options", d.option)
		case s.None:
			continue
		case d.off:
			return nil, fmt.Errorf("%s %s: %s is disabled", d.option, text, d.protocol)
		case d.outward && (s.Listen.IsValid() || s.Interface != ""):
			return nil, fmt.Errorf("%s %s: a listening address is not allowed", d.option, text)
		}
		if err := conflict(specs, s); err != nil {
			return nil, fmt.Errorf("%s %s: %w", d.option, text, err)
		}
		specs = append(specs, s)
	}
	return specs, nil
}

// conflict returns an error if an earlier specification listens on one of the ports.
func conflict(earlier []portspec.Spec, s portspec.Spec) error {
	for _, e := range earlier {
		if e.Listen.IsValid() && s.Listen.IsValid() && e.Listen != s.Listen ||
			e.Interface != "" && s.Interface != "" && e.Interface != s.Interface {
			continue
		}
		for _, a := range e.Ranges {
			for _, b := range s.Ranges {
				if a.First <= b.Last && b.First <= a.Last {
					return fmt.Errorf("port %d conflicts with an earlier specification", max(a.First, b.First))
				}
			}
		}
	}
	return nil
}

// forward adds one specification to the configuration.
func (p *planner) forward(d direction, s portspec.Spec) error {
	listen := s.Listen
	if !d.outward { // outward, "any address" means the namespace's loopback
		var err error
		if listen, err = p.family(listen); err != nil {
			return err
		}
	}
	auto := sandbox.AutoForward{TCP: d.protocol == sandbox.TCP, UDP: d.protocol == sandbox.UDP, Listen: listen, Interface: s.Interface}
	for _, r := range s.Ranges {
		if s.Auto || r.Weak {
			if err := automatic(&auto, r); err != nil {
				return err
			}
			continue
		}
		p.literal(d, listen, s.Interface, r)
	}
	switch {
	case len(auto.Only) == 0:
	case d.outward:
		p.Config.AutoReverseForward = append(p.Config.AutoReverseForward, auto)
	default:
		p.Config.AutoForward = append(p.Config.AutoForward, auto)
	}
	return nil
}

// family restricts "any address" to the only enabled family, and rejects an address of a
// disabled family.
func (p *planner) family(listen netip.Addr) (netip.Addr, error) {
	switch {
	case listen.Is4() && p.Config.NoIPv4:
		return listen, errors.New("needs IPv4, which is disabled")
	case listen.Is6() && p.Config.NoIPv6:
		return listen, errors.New("needs IPv6, which is disabled")
	case !listen.IsValid() && p.Config.NoIPv6:
		return netip.IPv4Unspecified(), nil
	case !listen.IsValid() && p.Config.NoIPv4:
		return netip.IPv6Unspecified(), nil
	}
	return listen, nil
}

// literal adds a forward for each port of a range.
func (p *planner) literal(d direction, listen netip.Addr, link string, r portspec.Range) {
	for i := range int(r.Last-r.First) + 1 {
		from, to := r.First+uint16(i), r.To+uint16(i)
		if d.outward {
			p.Config.ReverseForwards = append(p.Config.ReverseForwards, sandbox.ReverseForward{
				Protocol: d.protocol, Listen: netip.AddrPortFrom(netip.Addr{}, from), To: netip.AddrPortFrom(r.ToAddr, to)})
			continue
		}
		p.Config.Forwards = append(p.Config.Forwards, sandbox.Forward{
			Protocol: d.protocol, Listen: netip.AddrPortFrom(listen, from), Interface: link, To: netip.AddrPortFrom(r.ToAddr, to)})
	}
}

// automatic adds a range to an automatic forward. Its ports are those at the other end.
func automatic(auto *sandbox.AutoForward, r portspec.Range) error {
	if r.ToAddr.IsValid() {
		return fmt.Errorf("can't follow listeners on %s: 'auto' and 'all' lead to the namespace's own address", r.ToAddr)
	}
	auto.Only = append(auto.Only, sandbox.PortRange{First: r.To, Last: r.To + (r.Last - r.First)})
	if r.To == r.First {
		return nil
	}
	if auto.Shift == nil {
		auto.Shift = map[uint16]int{}
	}
	for i := range int(r.Last-r.First) + 1 {
		auto.Shift[r.To+uint16(i)] = int(r.First) - int(r.To)
	}
	return nil
}
