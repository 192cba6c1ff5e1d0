package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"cleat/link"
	"cleat/network/named"
	"cleat/network/span"
	"cleat/network/span/guard"
	"cleat/network/span/probe"
	"cleat/overlay"
	"cleat/overlay/registry"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// unreachable is how containers are reached that are not.
const unreachable = "unreachable"

// ways is how this host may reach the containers of others.
type ways struct {
	uplink  string         // the device that has this host's address
	mtu     int            // of the uplink, in bytes
	hosts   map[string]way // by host
	accepts map[string]way // how packets of theirs may come; soon after the cluster has begun to encrypt, as before
	strict  bool           // packets are refused that are not encrypted
}

// way is how this host may reach the containers of another one.
type way struct {
	addr   netip.Addr // of the other host
	choice string     // Between the hosts
	onLink bool       // the other host is on the uplink's segment
	err    error      // the hosts can't reach each other's containers
	lacks  bool       // err is that a host lacks what choice needs, which the status shows
	tunnel string     // the device of the tunnel between the hosts; "" without one
	state  tunnelState
	keys   bool // both hosts have keys of WireGuard
}

// waysTo returns how this host may reach the containers of others.
func (d *dataplane) waysTo(s overlay.State) (w ways, err error) {
	w.hosts, w.accepts, w.strict, w.mtu = map[string]way{}, map[string]way{}, d.refusesPlain(s), s.Self.MTU
	h, err := link.Handle(d.host)
	if err != nil {
		return w, err
	}
	defer h.Close()
	uplink, err := deviceOf(h, s.Self.Address)
	if err != nil {
		return w, err
	}
	if uplink != nil {
		w.uplink, w.mtu = uplink.Attrs().Name, uplink.Attrs().MTU
		d.setUplink(w.uplink, w.mtu)
	}
	for _, other := range s.Hosts {
		one := way{addr: other.Address}
		if one.choice, one.err = s.Between(other); one.err == nil {
			one.err = d.lacks(s, one.choice, other)
			one.lacks = one.err != nil
		}
		one.keys = d.lacks(s, overlay.WireGuardWay, other) == nil
		one.tunnel, one.state = d.tunnels.to(other.Name)
		one.onLink = uplink != nil && uplink.Attrs().EncapType == "ether" && onLink(h, uplink, other.Address)
		w.hosts[other.Name] = one
		if s.Encrypted && !w.strict {
			late := s
			late.Encrypted = false
			one.choice, one.err = late.Between(other)
		}
		w.accepts[other.Name] = one
	}
	return w, nil
}

// deviceOf returns the device that has an address; nil if there is none.
func deviceOf(h *netlink.Handle, a netip.Addr) (netlink.Link, error) {
	all, err := link.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, one := range all {
		if one.IP.Equal(a.AsSlice()) {
			l, err := h.LinkByIndex(one.LinkIndex)
			if errors.As(err, new(netlink.LinkNotFoundError)) {
				return nil, nil
			}
			return l, err
		}
	}
	return nil, nil
}

// onLink reports whether an address is reached by a device without a gateway.
func onLink(h *netlink.Handle, device netlink.Link, a netip.Addr) bool {
	routes, err := h.RouteGet(a.AsSlice())
	if err != nil || len(routes) != 1 {
		return false
	}
	r := routes[0]
	return r.LinkIndex == device.Attrs().Index && r.Gw == nil && r.Via == nil && (r.Type == unix.RTN_UNICAST || r.Type == unix.RTN_UNSPEC)
}

// remotes returns the devices by which packets of other hosts' containers on a network may come. A host accepts them
// in all ways that the other one may choose. All are in order: a network's file is compared as text.
func (w ways) remotes(n overlay.NetworkState) (all []named.Remote) {
	encapsulated := named.Remote{Device: span.Device, Only: true}
	plain := named.Remote{Device: w.uplink}
	byTunnel := map[string]named.Remote{}
	for host, blocks := range n.Remote {
		one := w.accepts[host]
		for _, b := range blocks {
			if one.mayBeVXLAN() {
				encapsulated.Prefixes = append(encapsulated.Prefixes, b)
			}
			if one.mayBePlain(b) {
				plain.Prefixes = append(plain.Prefixes, b)
			}
			if one.tunnel != "" && !w.strict {
				byTunnel[one.tunnel] = named.Remote{Device: one.tunnel, Prefixes: append(byTunnel[one.tunnel].Prefixes, b), Only: true}
			}
		}
	}
	for _, device := range slices.Sorted(maps.Keys(byTunnel)) {
		all = append(all, byTunnel[device])
	}
	all = slices.Concat(w.tunnels(n), []named.Remote{encapsulated, plain}, all)
	for _, r := range all {
		slices.SortFunc(r.Prefixes, netip.Prefix.Compare)
	}
	return slices.DeleteFunc(all, func(r named.Remote) bool { return len(r.Prefixes) == 0 })
}

// reach makes the routes to other hosts' containers.
func (d *dataplane) reach(s overlay.State, ways ways) error {
	mac, err := link.ParseMAC(s.Self.MAC)
	if err != nil {
		return fmt.Errorf("this host's Ethernet address: %w", err)
	}
	c := span.Config{VNI: s.VNI, Local: s.Self.Address, MAC: mac, MTU: ways.mtu, Uplink: ways.uplink, Encrypted: ways.strict}
	var errs []error
	if c.WireGuard, err = wireGuard(s); err != nil {
		errs = append(errs, err)
	}
	own := map[string]*named.Network{}
	for _, n := range s.Networks {
		if len(n.Own) == 0 {
			continue
		}
		local, err := d.store.Network(n.Name)
		if err != nil {
			continue // Apply has reported why
		}
		own[n.Name] = local
		for _, sub := range n.Subnets {
			c.Unreachable = append(c.Unreachable, sub.Prefix)
		}
	}
	d.routing.apply(s, own)
	d.prober.Set(ways.probes(s, mac, own))
	before, err := span.Blocks(d.host)
	if err != nil {
		return err
	}
	paths := map[string]overlay.Path{}
	for _, h := range s.Hosts {
		mac, err := link.ParseMAC(h.MAC)
		if err != nil {
			errs = append(errs, fmt.Errorf("read the Ethernet address of host %s: %w", h.Name, err))
			continue
		}
		one := span.Host{Address: h.Address, MAC: mac, By: ways.hosts[h.Name].by(), Port: wireGuardPort(h)}
		if one.Keys, err = publicKeys(h); err != nil {
			errs = append(errs, err)
		}
		to := path{way: ways.hosts[h.Name], host: h, prober: d.prober, before: before, encrypted: s.Encrypted}
		to.mtu = ways.pathTo(h, d.prober, pathBefore(to.by(), h, before, blocksOf(s, h.Name)))
		one.MTU = to.mtu.bytes
		for _, n := range s.Networks {
			if own[n.Name] == nil {
				continue
			}
			for _, p := range n.Remote[h.Name] {
				if to.state.up {
					one.Blocks = append(one.Blocks, span.Block{Prefix: p, Source: sourceFor(own[n.Name], p), Tunnel: to.tunnel})
					continue
				}
				if plain, ok := to.add(p); ok {
					one.Blocks = append(one.Blocks, span.Block{Prefix: p, Source: sourceFor(own[n.Name], p), Plain: plain})
				}
			}
		}
		c.Hosts = append(c.Hosts, one)
		paths[h.Name] = to.path()
		if !to.lacks {
			errs = append(errs, to.err)
		}
	}
	c.Software = d.software()
	errs = append(errs, d.protect(s))
	changed, err := span.Sync(d.host, c)
	if len(changed) > 0 {
		d.log("routes: %s", strings.Join(changed, ", "))
	}
	errs = append(errs, err, d.behind(s, c, paths, err != nil))
	d.setPaths(paths)
	d.logNotes()
	return errors.Join(errs...)
}

// Remove implements overlay.Remover.
func (d *dataplane) Remove(ctx context.Context) error {
	return errors.Join(d.tunnels.remove(ctx), d.routing.kernel.Remove(), removeFile(d.routing.mark), span.Remove(d.host), guard.Remove(d.host, guardTable))
}

// setPaths remembers and logs how other hosts' containers are reached.
func (d *dataplane) setPaths(paths map[string]overlay.Path) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, host := range slices.Sorted(maps.Keys(paths)) {
		if p := paths[host]; p != d.paths[host] {
			d.log("containers of host %s: %s, %s", host, p.By, p.Why)
		}
	}
	d.paths = paths
}

// Paths implements overlay.Dataplane.
func (d *dataplane) Paths() map[string]overlay.Path {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.paths)
}

// probes returns what is probed: the paths to hosts, and whether plain packets reach them.
func (w ways) probes(s overlay.State, mac link.MAC, own map[string]*named.Network) probe.Setup {
	setup := probe.Setup{Local: s.Self.Gate(), Uplink: w.uplink, MTU: w.mtu, Device: span.Device, MAC: mac}
	if w.strict { // there is no such device
		setup.Device = ""
	}
	for _, h := range s.Hosts {
		peer := probe.Peer{Name: h.Name, Address: h.Gate(), MTU: h.MTU}
		if w.hosts[h.Name].mayBeVXLAN() {
			peer.MAC, _ = link.ParseMAC(h.MAC) // reach reports an error
		}
		for _, n := range s.Networks {
			local := own[n.Name]
			if local == nil {
				continue
			}
			theirs := &named.Network{NetworkSpec: local.NetworkSpec, Span: &named.Span{Blocks: n.Remote[h.Name]}}
			for _, from := range local.OwnAddresses() {
				for _, to := range theirs.OwnAddresses() {
					if from.Is4() == to.Is4() && w.hosts[h.Name].mayBePlain(netip.PrefixFrom(to, to.BitLen())) && !peer.Has(to) {
						peer.Ways = append(peer.Ways, probe.Way{From: from, To: to})
					}
				}
			}
		}
		if w.hosts[h.Name].err == nil {
			setup.Peers = append(setup.Peers, peer)
		}
	}
	if len(own) == 0 {
		setup.Peers = nil
	}
	return setup
}

// path decides how the blocks of a host are reached.
type path struct {
	way
	host         registry.Host
	prober       *probe.Prober
	before       map[netip.Prefix]span.BlockRoute
	encrypted    bool // the whole cluster
	mtu          pathMTU
	plain, other bool // there are such blocks
	why          string
}

// add returns whether a block is reached by a plain route. ok is false if it is not reached.
func (p *path) add(block netip.Prefix) (plain, ok bool) {
	result := p.prober.Result(p.host.Name, block.Addr())
	switch {
	case p.err != nil:
		p.why = p.err.Error()
		return false, false
	case p.choice != overlay.Auto && p.choice != overlay.Routes:
		p.other, p.why = true, "as chosen by --dataplane"
		if p.encrypted {
			p.why = "everything between hosts is encrypted"
		}
		return false, true
	case !p.onLink:
		p.why = "the host is not on this host's segment"
	case !p.mayBePlain(block):
		if !p.plain {
			p.why = "IPv6 routes can't lead to IPv4 addresses of hosts"
		}
	case p.choice == overlay.Routes:
		p.plain, p.why = true, "as chosen by --dataplane"
		if result == probe.Fails {
			p.why += ", but the segment drops packets of containers"
		}
		return true, true
	case result == probe.Works:
		p.plain, p.why = true, "the segment passes packets of containers"
		return true, true
	case result == probe.Fails:
		p.why = "the segment drops packets of containers; they are tried again every few seconds"
	case p.before[block].Plain:
		p.plain, p.why = true, "as before this node started; the other one does not answer probes yet"
		return true, true
	case p.prober.Problem() != nil:
		p.why = "the segment is not probed: " + p.prober.Problem().Error()
	default:
		p.why = fmt.Sprintf("the other node does not answer probes (UDP port %d)", p.host.Port)
	}
	p.other = true
	return false, p.mayBeVXLAN()
}

// path returns how the host's containers are reached.
func (p *path) path() overlay.Path {
	got := overlay.Path{By: overlay.VXLAN, Why: p.why}
	if p.by() != span.ByVXLAN {
		got.By = p.choice
	}
	switch {
	case p.err != nil:
		return overlay.Path{By: unreachable, Why: p.err.Error()}
	case p.state.up:
		return overlay.Path{By: "tunnel", Why: p.state.String()}
	case !p.plain && !p.other:
		got = overlay.Path{By: p.choice, Why: "no network is on both hosts yet"}
	case p.plain && p.other:
		got.By = overlay.Routes + " and " + overlay.VXLAN
	case p.plain:
		got.By = overlay.Routes
	case p.choice == overlay.Routes:
		got.By = unreachable
	}
	if got.By != unreachable {
		got.MTU = span.PacketsTo(p.by(), p.addr, p.mtu.bytes, !p.other && p.plain)
		if got.By != overlay.Routes && p.by() == span.ByVXLAN && p.prober.Blocked(p.host.Name) {
			got.Why += fmt.Sprintf("; but packets in VXLAN don't arrive there, maybe a firewall drops them (UDP port %d)", link.VXLANPort)
		}
		if p.mtu.why != "" {
			got.Why += fmt.Sprintf("; packets of up to %d bytes, %s", got.MTU, p.mtu.why)
		}
	}
	if p.tunnel != "" {
		got.Why += "; the tunnel waits for the other host"
		if p.state.problem != "" {
			got.Why = "the tunnel does not work: " + p.state.problem
		}
	}
	return got
}

// blocksOf returns the blocks of a host.
func blocksOf(s overlay.State, host string) (all []netip.Prefix) {
	for _, n := range s.Networks {
		all = append(all, n.Remote[host]...)
	}
	return all
}

// blocksOfOthers returns the blocks of all other hosts in a network, in order.
func blocksOfOthers(n overlay.NetworkState) (all []netip.Prefix) {
	for _, blocks := range n.Remote {
		all = append(all, blocks...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// sourceFor returns the host's own address in a network, for packets to a block.
func sourceFor(n *named.Network, block netip.Prefix) netip.Addr {
	for _, a := range n.OwnAddresses() {
		if a.Is4() == block.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}
