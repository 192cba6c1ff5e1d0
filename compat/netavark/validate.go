package netavark

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
)

// checkOverlap returns an error if two of a network's subnets overlap.
func (n *network) checkOverlap() error {
	for i, a := range n.Subnets {
		for _, b := range n.Subnets[i+1:] {
			if a.Subnet.Prefix == b.Subnet.Prefix {
				return failure("duplicate subnet defined: %s", a.Subnet)
			}
			if a.Subnet.Overlaps(b.Subnet.Prefix) {
				return failure("overlapping subnets: %s and %s", a.Subnet, b.Subnet)
			}
		}
	}
	return nil
}

// completeSubnets checks the subnets, and gives each a gateway if it needs one.
func (n *network) completeSubnets(addGateway, checkUsed bool, used []prefix) error {
	if err := n.checkOverlap(); err != nil {
		return err
	}
	for i := range n.Subnets {
		s := &n.Subnets[i]
		switch {
		case checkUsed && isUsed(s.Subnet.Prefix, used):
			return failure("subnet %s is already used on the host or by another config", s.Subnet)
		case s.Gateway != nil && !s.Subnet.Contains(s.Gateway.Addr):
			return failure("gateway %s not in subnet %s", s.Gateway, s.Subnet)
		case s.Gateway == nil && addGateway:
			g, err := firstAddress(s.Subnet.Prefix)
			if err != nil {
				return err
			}
			s.Gateway = &addr{g}
		}
		if err := s.checkLease(); err != nil {
			return err
		}
		n.IPv6 = n.IPv6 || s.Subnet.Addr().Is6()
	}
	return nil
}

// firstAddress returns the first address of a subnet for a gateway.
func firstAddress(p netip.Prefix) (netip.Addr, error) {
	longest := p.Addr().BitLen()
	if p.Addr().Is4() {
		longest-- // one is the network's address, the other one for broadcasts
	}
	if p.Bits() >= longest {
		return netip.Addr{}, failure("could not create gateway for subnet %s because it has a %d or greater subnet prefix", p, longest)
	}
	return p.Masked().Addr().Next(), nil
}

func (s *subnet) checkLease() error {
	if s.Lease == nil {
		return nil
	}
	var bounds [2]netip.Addr
	for i, b := range []struct{ name, text string }{{"start_ip", s.Lease.Start}, {"end_ip", s.Lease.End}} {
		if b.text == "" {
			continue
		}
		a, err := netip.ParseAddr(b.text)
		if err != nil {
			return failure("invalid %s: %v", b.name, errAddress)
		}
		if !s.Subnet.Contains(a) {
			return failure("lease range %s %s not in subnet %s", b.name, a, s.Subnet)
		}
		bounds[i] = a
	}
	if start, end := bounds[0], bounds[1]; start.IsValid() && end.IsValid() && end.Less(start) {
		return failure("lease range start_ip %s must be less than or equal to end_ip %s", start, end)
	}
	return nil
}

func (n *network) checkRoutes() error {
	for _, r := range n.Routes {
		kind := "unicast"
		if r.Type != nil && *r.Type != "" {
			kind = *r.Type
		}
		leadsNowhere := slices.Contains([]string{"blackhole", "unreachable", "prohibit"}, kind)
		switch {
		case r.To.Prefix != r.To.Masked():
			return failure("route destination invalid")
		case kind == "unicast" && r.Via == nil:
			return failure("route %s requires a gateway for type unicast", r.To)
		case leadsNowhere && r.Via != nil:
			return failure("route %s must not have a gateway for type %s", r.To, kind)
		case !leadsNowhere && kind != "unicast":
			return failure("invalid route type %q", kind)
		}
	}
	return nil
}

var (
	bridgeOptions = []string{"mode", "mtu", "isolate", "metric", "no_default_route", "vrf", "vlan"}
	vlanOptions   = []string{"mode", "mtu", "metric", "no_default_route", "bclim"}
)

// networkOptions are the options of a network that were given as text.
type networkOptions struct {
	mode           string
	mtu, vlan      int
	metric         *int
	isolate        string
	noDefaultRoute bool
	vrf            string
	bclim          *int
	outbound       []netip.Addr
}

// parseOptions parses options. If allowed is not nil, others are an error that begins with refusal.
func parseOptions(given map[string]string, allowed []string, refusal string) (o networkOptions, err error) {
	for name := range given {
		if allowed != nil && !slices.Contains(allowed, name) {
			return o, failure("%s%s", refusal, name)
		}
	}
	number := func(name string, max int) *int {
		text, ok := given[name]
		if !ok || err != nil {
			return nil
		}
		n, parseErr := strconv.ParseUint(text, 10, 32)
		switch {
		case text == "":
			err = failure("unable to parse %q: cannot parse integer from empty string", name)
		case parseErr != nil:
			err = failure("unable to parse %q: invalid digit found in string", name)
		case n > uint64(max):
			err = failure("unable to parse %q: number too large to fit in target type", name)
		}
		v := int(n)
		return &v
	}
	if v := number("mtu", 1<<32-1); v != nil {
		o.mtu = *v
	}
	o.metric = number("metric", 1<<32-1)
	if v := number("vlan", 1<<16-1); v != nil {
		o.vlan = *v
	}
	if text, ok := given["no_default_route"]; ok && err == nil {
		if o.noDefaultRoute = text == "true"; !o.noDefaultRoute && text != "false" {
			err = failure("unable to parse %q: provided string was not `true` or `false`", "no_default_route")
		}
	}
	if text, ok := given["bclim"]; ok && err == nil {
		o.bclim, err = parseInt32("bclim", text)
	}
	for i, name := range []string{"outbound_addr4", "outbound_addr6"} {
		text, ok := given[name]
		if !ok || err != nil {
			continue
		}
		a, parseErr := netip.ParseAddr(text)
		if parseErr != nil || a.Is4() != (i == 0) || a.Zone() != "" {
			err = failure("unable to parse %q: invalid IPv%d address syntax", name, 4+2*i)
		}
		o.outbound = append(o.outbound, a)
	}
	o.mode, o.isolate, o.vrf = given["mode"], given["isolate"], given["vrf"]
	_, hasIsolate := given["isolate"]
	switch {
	case err != nil:
	case hasIsolate && !slices.Contains([]string{"true", "false", "strict"}, o.isolate):
		err = failure("invalid isolate option %q", o.isolate)
	case o.vlan > 4094:
		err = failure("vlan must be between 0 and 4094")
	}
	return o, err
}

// parseInt32 parses an option that may be negative.
func parseInt32(name, text string) (*int, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	v := int(n)
	switch {
	case err == nil:
		return &v, nil
	case text == "":
		return nil, failure("unable to parse %q: cannot parse integer from empty string", name)
	case !errors.Is(err, strconv.ErrRange):
		return nil, failure("unable to parse %q: invalid digit found in string", name)
	case v < 0:
		return nil, failure("unable to parse %q: number too small to fit in target type", name)
	}
	return nil, failure("unable to parse %q: number too large to fit in target type", name)
}

// checkMode returns an error if a driver does not have a mode.
func checkMode(driver, mode string) error {
	modes := map[string][]string{
		driverBridge:  {"managed", "unmanaged"},
		driverMacvlan: {"bridge", "private", "vepa", "passthru", "source"},
		driverIPvlan:  {"l2", "l3", "l3s"},
	}[driver]
	if mode == "" || slices.Contains(modes, mode) {
		return nil
	}
	return failure("invalid %s mode %q", driver, mode)
}
