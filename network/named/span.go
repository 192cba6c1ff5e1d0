package named

import (
	"cmp"
	"context"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/network/ipam"
)

// Span is this host's part of a network that several hosts have. Whoever registers the network with the other
// hosts sets it.
type Span struct {
	Blocks  []netip.Prefix `json:"blocks,omitempty"` // addresses that this host gives to its containers
	Remotes []Remote       `json:"remotes,omitempty"`
	Hosts   []netip.Addr   `json:"hosts,omitempty"`  // the addresses of other hosts themselves
	Sealed  []netip.Prefix `json:"sealed,omitempty"` // other hosts' addresses that only Remotes lead to, and come from
	// PacketBytes is the size of the largest packets between containers of different hosts; 0: all that the hosts'
	// devices pass. Containers know it by a route to the network.
	PacketBytes int `json:"packet_bytes,omitempty"`
	// Held means that other hosts may have the blocks, because this one was cut off for long: it gives out nothing.
	Held bool `json:"held,omitempty"`
	// Created is when the network was registered. One of the same name may be another one.
	Created time.Time `json:"created,omitzero"`
}

// HeldError means that this host gives out no addresses of a network.
type HeldError struct{ Network string }

func (e *HeldError) Error() string {
	return "network " + e.Network + " gives out no addresses here: this host was cut off from the others for so long that they may have its addresses"
}

// Hint returns what to type next.
func (e *HeldError) Hint() string { return "`cleat-node status` shows what is missing" }

// Remote is a device that leads to containers of other hosts.
type Remote struct {
	Device   string         `json:"device"`
	Prefixes []netip.Prefix `json:"prefixes"`
	Only     bool           `json:"only,omitempty"` // the device leads to nothing else
}

// Registrar registers networks that span hosts, and changes them on all hosts, this one included.
type Registrar interface {
	Create(ctx context.Context, spec NetworkSpec) error
	Change(ctx context.Context, spec NetworkSpec) error
	Remove(ctx context.Context, network string, force bool) error
	// MoreAddresses gets this host more addresses of a network: a certain one, if it is valid.
	MoreAddresses(ctx context.Context, network string, a netip.Addr) error
}

// spanRoutes makes a container send packets to its network that fit between hosts, without waiting for ICMP messages.
// Packets to elsewhere may be as large as its link permits. Engines that make the routes themselves get a smaller link.
func (n *Network) spanRoutes(e *Endpoint, spec *attach.Spec) {
	if n.Span == nil || n.Span.PacketBytes == 0 || n.Span.PacketBytes >= spec.MTU {
		return
	}
	if e.Wanted.engineRoutes() {
		spec.MTU = n.Span.packetsOf(slices.ContainsFunc(e.Addresses, netip.Addr.Is6))
		return
	}
	for _, a := range e.Addresses {
		spec.Routes = append(spec.Routes, attach.Route{To: n.subnet(a).Prefix.Masked(), Via: n.gatewayFor(a), MTU: n.Span.packetsOf(a.Is6())})
	}
}

// packetsOf returns PacketBytes of an address family. IPv6 has a least size (RFC 8200 section 5).
func (s *Span) packetsOf(is6 bool) int {
	const least6 = 1280
	if is6 {
		return max(s.PacketBytes, least6)
	}
	return s.PacketBytes
}

// addresses returns the host's own addresses in the network: the first ones of its blocks that can be one, one of
// each address family. Packets of the host to containers of other hosts have them as their source. An address that the
// host borrowed before it got the block around it is a container's.
func (s *Span) addresses(spec *NetworkSpec) (all []netip.Addr) {
	for _, sub := range spec.Subnets {
		i := slices.IndexFunc(s.Blocks, func(b netip.Prefix) bool { return sub.Prefix.Contains(b.Addr()) && b.Bits() < b.Addr().BitLen()-1 })
		if i < 0 {
			continue
		}
		a := s.Blocks[i].Addr()
		for a == sub.Prefix.Addr() || a == sub.Gateway || slices.Contains(s.Blocks, netip.PrefixFrom(a, a.BitLen())) {
			a = a.Next()
		}
		if s.Blocks[i].Contains(a) {
			all = append(all, a)
		}
	}
	return all
}

// OwnAddresses returns the host's own addresses in a network that spans hosts.
func (n *Network) OwnAddresses() []netip.Addr {
	if n.Span == nil {
		return nil
	}
	return n.Span.addresses(&n.NetworkSpec)
}

// blocks returns the subnets that a network's pool consists of: of a network that spans hosts, this host's blocks. An
// address that the host borrowed before it got the block around it is one of that block.
func (n *Network) blocks() (all []ipam.Subnet) {
	own := n.OwnAddresses()
	for _, sub := range n.Subnets {
		of := ipam.Subnet{Prefix: sub.Prefix, Gateway: sub.Gateway, Exclude: sub.Exclude}
		if sub.Range.IsValid() {
			of.First, of.Last = ipam.Bounds(sub.Range)
		}
		if n.Span == nil {
			all = append(all, of)
			continue
		}
		for _, b := range outermost(n.Span.Blocks) {
			if !sub.Prefix.Contains(b.Addr()) {
				continue
			}
			one := ipam.Subnet{Prefix: b, Part: true, Exclude: slices.Clone(within(b, sub.Exclude))}
			first, last := ipam.Bounds(sub.Prefix) // the network's and the broadcast address, or the routers' (RFC 4291)
			own := append(slices.Clip(own), first)
			if first.Is4() {
				own = append(own, last)
			}
			if b.Contains(sub.Gateway) {
				one.Gateway = sub.Gateway
			}
			for _, a := range own {
				if b.Contains(a) {
					one.Exclude = append(one.Exclude, netip.PrefixFrom(a, a.BitLen()))
				}
			}
			all = append(all, one)
		}
	}
	return all
}

// remotes returns the ways to containers of other hosts, as rules.
func (s *Span) remotes() (all []firewall.Remote) {
	if s == nil {
		return nil
	}
	for _, r := range s.Remotes {
		i := slices.IndexFunc(all, func(o firewall.Remote) bool { return o.Device == r.Device })
		if i < 0 {
			all, i = append(all, firewall.Remote{Device: r.Device}), len(all)
		}
		all[i].Prefixes, all[i].Only = append(all[i].Prefixes, r.Prefixes...), all[i].Only || r.Only
	}
	for i := range all {
		all[i].Prefixes = outermost(all[i].Prefixes)
	}
	if len(all) > 0 {
		all[0].Hosts = s.Hosts
	}
	return all
}

// sealed returns the addresses that only the ways to other hosts lead to.
func (s *Span) sealed() []netip.Prefix {
	if s == nil {
		return nil
	}
	return outermost(s.Sealed)
}

// outermost returns the prefixes that no other one contains, in order: blocks without the single addresses in them that
// somebody has borrowed.
func outermost(all []netip.Prefix) (outer []netip.Prefix) {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for _, p := range sorted {
		if n := len(outer); n == 0 || !outer[n-1].Contains(p.Addr()) {
			outer = append(outer, p)
		}
	}
	return outer
}

// checkSpan returns an *attach.SpecError if a network can't span hosts.
func (s *NetworkSpec) checkSpan() error {
	switch {
	case !s.Spans:
		return nil
	case s.Driver != Routed:
		return badSpec("driver", s.Driver, "can't span hosts, whose networks are routed", Routed)
	case s.Manager != "":
		return badSpec("span", s.Name, "an engine has made the network")
	case slices.ContainsFunc(s.Subnets, func(sub Subnet) bool { return sub.Range.IsValid() }):
		return badSpec("ip-range", s.Name, "each host chooses addresses from blocks of its own")
	}
	return nil
}

// spanBits4 is the prefix length of an IPv4 subnet that is chosen for a network that spans hosts: 256 blocks of 64
// addresses.
const spanBits4 = 18

// FitSpan completes the spec of a network that is to span hosts, as Create does without them: it chooses subnets
// that are free on this host.
func FitSpan(cfg Config, spec NetworkSpec) (NetworkSpec, error) {
	s, err := open(cfg)
	if err != nil {
		return spec, err
	}
	defer s.close()
	spec.Subnets = slices.Clone(spec.Subnets)
	spec.Spans = true
	if spec.Driver == "" || spec.Driver == Bridge {
		spec.Driver = Routed
	}
	if err := spec.normalize(); err != nil {
		return spec, err
	}
	n, err := s.newNetwork(spec)
	if err != nil {
		return spec, err
	}
	return n.NetworkSpec, nil
}

// CreateSpan creates this host's part of a network that is registered.
func CreateSpan(ctx context.Context, cfg Config, spec NetworkSpec, span Span) (*Result, error) {
	spec.Spans = true
	return create(ctx, cfg, spec, &span)
}

// ChangeSpan makes this host's part of a network as it is registered. It does nothing if it is so already.
func ChangeSpan(ctx context.Context, cfg Config, spec NetworkSpec, span Span) error {
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	unlock, err := s.store.lockNetworks(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := s.store.Network(spec.Name)
	if err != nil {
		return err
	}
	spec.Spans = true
	if err := spec.normalize(); err != nil {
		return err
	}
	now := *old
	now.NetworkSpec, now.Span = spec, &span
	if reflect.DeepEqual(asWritten(now), asWritten(*old)) {
		return nil
	}
	return s.replaceNetwork(ctx, old, &now)
}

// asWritten returns a network's file.
func asWritten(n Network) string {
	text, err := statedir.EncodeJSON(&n)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// allRules returns the rules of all networks.
func (s *session) allRules() ([]Rule, error) {
	networks, err := s.store.Networks()
	if err != nil {
		return nil, err
	}
	return rulesOf(networks)
}
