package named

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"cleat/internal/statedir"
	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/network/ipam"
	"cleat/network/names"
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
// each address family. Packets of the host to containers of other hosts have them as their source.
func (s *Span) addresses(spec *NetworkSpec) (all []netip.Addr) {
	for _, sub := range spec.Subnets {
		i := slices.IndexFunc(s.Blocks, func(b netip.Prefix) bool { return sub.Prefix.Contains(b.Addr()) && b.Bits() < b.Addr().BitLen()-1 })
		if i < 0 {
			continue
		}
		a := s.Blocks[i].Addr()
		for a == sub.Prefix.Addr() || a == sub.Gateway {
			a = a.Next()
		}
		all = append(all, a)
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

// blocks returns the subnets that a network's pool consists of: of a network that spans hosts, this host's blocks.
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
		for _, b := range n.Span.Blocks {
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

// outermost returns the prefixes that no other one contains: blocks without the single addresses in them that
// another host has borrowed.
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

// RemoteEndpoint is a container of another host.
type RemoteEndpoint struct {
	ID        string            `json:"id"`
	Container string            `json:"container"` // e.g. "docker:api"
	Names     []string          `json:"names"`
	Addresses []netip.Addr      `json:"addresses"`
	Labels    map[string]string `json:"labels,omitempty"`
	Ports     []names.Port      `json:"ports,omitempty"`
	Published []Port            `json:"published,omitempty"` // on its host, or everywhere
}

// remoteHost is the file with another host's endpoints on a network.
type remoteHost struct {
	Version   int              `json:"version"`
	Host      string           `json:"host"`
	Endpoints []RemoteEndpoint `json:"endpoints"`
}

func (s Store) remotesDir(network string) string { return s.Path("networks", network, "remote") }

// remoteHosts returns the endpoints of other hosts on a network, by host.
func (s Store) remoteHosts(network string) (all []*remoteHost, err error) {
	return s.remoteHostsThat(network, "")
}

// publishesEverywhere is in the file of a host with a container that publishes a port everywhere.
const publishesEverywhere = `"everywhere"`

// remoteHostsThat is remoteHosts for the hosts whose files have a text. Others are not decoded.
func (s Store) remoteHostsThat(network, text string) (all []*remoteHost, err error) {
	files, err := os.ReadDir(s.remotesDir(network))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list other hosts of %s: %w", network, err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), endpointSuffix) {
			continue
		}
		path := s.remotesDir(network) + "/" + f.Name()
		if text != "" {
			content, err := os.ReadFile(path)
			if err == nil && !bytes.Contains(content, []byte(text)) {
				continue
			}
		}
		h, err := statedir.ReadJSON[remoteHost](path)
		if err != nil {
			return nil, err
		}
		if h != nil {
			all = append(all, h)
		}
	}
	return all, nil
}

// RemoteHosts returns the hosts of which SetRemote has set containers on a network.
func (s Store) RemoteHosts(network string) (names []string, err error) {
	all, err := s.remoteHosts(network)
	for _, h := range all {
		names = append(names, h.Host)
	}
	return names, err
}

// name returns the endpoint as the name server knows it.
func (e *RemoteEndpoint) name(host string) names.Endpoint {
	h := names.Endpoint{ID: host + "/" + e.ID, Addrs: e.Addresses, Ports: e.Ports}
	if len(e.Names) > 0 {
		h.Name, h.Aliases = e.Names[0], e.Names[1:]
	}
	return h
}

// endpoint returns the endpoint as rules see it.
func (e *RemoteEndpoint) endpoint(network string) *Endpoint {
	return &Endpoint{Network: network, Container: attach.Container{Name: e.Container}, Addresses: e.Addresses, Names: e.Names, Wanted: Connection{Labels: e.Labels}}
}

// sameButWays reports whether a network differs from what it was in nothing but the ways to containers of other hosts:
// neither its names nor what is allowed changes with these.
func (n *Network) sameButWays(old *Network) bool {
	if n.Span == nil || old.Span == nil {
		return false
	}
	was, own := *old, *old.Span
	own.Remotes = n.Span.Remotes
	was.Span = &own
	return asWritten(was) == asWritten(*n)
}

// SetRemotes replaces what this host knows of the containers of other hosts on a network, by host.
func SetRemotes(ctx context.Context, cfg Config, network string, hosts map[string][]RemoteEndpoint) error {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return err
	}
	defer s.close()
	var change names.Change
	var differ []*RemoteEndpoint
	var publish []remoteChange // of hosts whose containers publish ports everywhere, or did
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		c, err := s.store.setRemote(network, host, hosts[host])
		if err != nil {
			return err
		}
		change.Set, change.Delete = append(change.Set, c.names.Set...), append(change.Delete, c.names.Delete...)
		differ = append(differ, c.differ...)
		if slices.ContainsFunc(c.differ, func(e *RemoteEndpoint) bool { return len(e.everywhere()) > 0 }) {
			publish = append(publish, c)
		}
	}
	if len(differ) == 0 {
		return nil
	}
	if err := s.changeNames(ctx, network, change); err != nil {
		return err
	}
	if len(publish) > 0 {
		var errs []error
		for _, c := range publish {
			errs = append(errs, s.republish(ctx, n, c.old, c.now))
		}
		return errors.Join(errs...)
	}
	rules, err := s.allRules()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(differ, func(e *RemoteEndpoint) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool { return r.names(e.endpoint(n.Name)) })
	}) {
		return s.syncRules(ctx)
	}
	return nil
}

// remoteChange is how what is known of another host differs from before.
type remoteChange struct {
	old, now *remoteHost
	names    names.Change
	differ   []*RemoteEndpoint
}

// setRemote writes the file with another host's endpoints, if they differ.
func (s Store) setRemote(network, host string, all []RemoteEndpoint) (c remoteChange, err error) {
	path := s.remotesDir(network) + "/" + host + endpointSuffix
	if c.old, err = statedir.ReadJSON[remoteHost](path); err != nil {
		return c, err
	}
	if c.old == nil {
		c.old = &remoteHost{}
	}
	c.now = &remoteHost{Version: 1, Host: host, Endpoints: all}
	if c.names, c.differ = c.now.since(c.old); len(c.differ) == 0 {
		return c, nil
	}
	if len(all) == 0 {
		return c, statedir.Remove(path)
	}
	return c, statedir.WriteJSON(path, c.now)
}

// since returns how the names differ from an earlier state, and the endpoints that do.
func (h *remoteHost) since(old *remoteHost) (c names.Change, differ []*RemoteEndpoint) {
	before := map[string]*RemoteEndpoint{}
	for i := range old.Endpoints {
		before[old.Endpoints[i].ID] = &old.Endpoints[i]
	}
	for i := range h.Endpoints {
		e := &h.Endpoints[i]
		was := before[e.ID]
		delete(before, e.ID)
		if was != nil && reflect.DeepEqual(was, e) {
			continue
		}
		c.Set = append(c.Set, e.name(h.Host))
		differ = append(differ, e)
		if was != nil {
			differ = append(differ, was)
		}
	}
	for _, gone := range before {
		c.Delete = append(c.Delete, gone.name(h.Host).ID)
		differ = append(differ, gone)
	}
	return c, differ
}

// allRules returns the rules of all networks.
func (s *session) allRules() ([]Rule, error) {
	networks, err := s.store.Networks()
	if err != nil {
		return nil, err
	}
	return rulesOf(networks)
}

// bring gets this host the addresses that an endpoint must have, if another host has them.
func (s *session) bring(ctx context.Context, n *Network, e *Endpoint) error {
	for _, a := range slices.Concat(e.Wanted.Addresses, n.Reserve.of(e.Container)) {
		if err := s.bringAddress(ctx, n, a); err != nil {
			return err
		}
	}
	return nil
}

// bringAddress gets this host an address of a network that spans hosts, if another host has it.
func (s *session) bringAddress(ctx context.Context, n *Network, a netip.Addr) error {
	if n.Span == nil || s.Registrar == nil || n.subnet(a) == nil {
		return nil
	}
	owner, err := s.pool(n).Owner(a)
	if err != nil {
		return err
	}
	note, _ := owner.Reserved()
	own := slices.ContainsFunc(n.Span.Blocks, func(b netip.Prefix) bool { return b.Contains(a) })
	if own && !strings.HasPrefix(note, lentTo) {
		return nil
	}
	return s.moreAddresses(ctx, n, a)
}

// moreAddresses gets this host more addresses of a network that spans hosts: a, if it is valid.
func (s *session) moreAddresses(ctx context.Context, n *Network, a netip.Addr) error {
	if err := s.Registrar.MoreAddresses(ctx, n.Name, a); err != nil {
		return err
	}
	now, err := s.store.Network(n.Name)
	if err == nil {
		n.Span = now.Span
	}
	return err
}

// mayGetMore reports whether err means that this host has no address left of a network, and may get more.
func (s *session) mayGetMore(n *Network, err error) bool {
	return errors.As(err, new(*ipam.FullError)) && n.Span != nil && s.Registrar != nil
}

// lentTo begins the note by which an address is reserved that another host has borrowed.
const lentTo = "lent to host "

// Lend reserves an address of this host's blocks for another host: a, or any if a is not valid. The error is an
// *AddressTakenError if a container has it, and an *ipam.FullError if there is none.
func Lend(ctx context.Context, cfg Config, network string, a netip.Addr, host string) (netip.Addr, error) {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return a, err
	}
	defer s.close()
	pool, owner := s.pool(n), ipam.Reservation(lentTo+host)
	if a.IsValid() {
		if have, err := pool.Owner(a); err != nil || have == owner {
			return a, err
		}
		return a, s.explain(network, pool.Claim(a, owner, nil))
	}
	for _, part := range pool.Subnets {
		if part.Prefix.IsSingleIP() {
			continue // borrowed itself
		}
		if a, err = pool.Allocate(part.Prefix, owner, netip.Addr{}, nil); err == nil || !errors.As(err, new(*ipam.FullError)) {
			return a, err
		}
	}
	return a, err
}

// lentToOther is the note by which an address of this host's blocks is reserved that another host had before this host
// got the block.
const lentToOther = lentTo + "that had it before"

// SetLent frees the addresses that were lent and that no other host has any more. lent has those that others have.
func SetLent(cfg Config, network string, lent []netip.Addr) error {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return err
	}
	defer s.close()
	entries, err := s.pool(n).Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		note, _ := e.Owner.Reserved()
		if strings.HasPrefix(note, lentTo) && !slices.Contains(lent, e.Addr) {
			if err := s.pool(n).Release(e.Addr, e.Owner); err != nil {
				return err
			}
		}
	}
	for _, a := range lent {
		if slices.ContainsFunc(entries, func(e ipam.Entry) bool { return e.Addr == a }) {
			continue
		}
		if err := s.pool(n).Claim(a, ipam.Reservation(lentToOther), nil); err != nil {
			return fmt.Errorf("keep address %s for the host that has it: %w", a, err)
		}
	}
	return nil
}

// allocateSomewhere is allocate. If this host has no address left of a network that spans hosts, it gets more.
func (s *session) allocateSomewhere(ctx context.Context, o *operation, n *Network, e *Endpoint) error {
	err := s.allocate(o, n, e)
	if !s.mayGetMore(n, err) {
		return err
	}
	if err := errors.Join(s.release(e), s.moreAddresses(ctx, n, netip.Addr{})); err != nil {
		return err
	}
	e.Addresses = nil
	return s.allocate(o, n, e)
}
