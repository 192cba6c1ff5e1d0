package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"cleat/network/span"
	"cleat/network/span/probe"
	"cleat/overlay"
	"cleat/overlay/registry"
)

// UplinkMTU implements overlay.MTUKnower.
func (d *dataplane) UplinkMTU() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mtu
}

// setUplink notes the device with this host's address, and its MTU.
func (d *dataplane) setUplink(name string, bytes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uplink, d.mtu = name, bytes
}

// pathMTU is the size of the largest packets to another host, and why it is not that of this host's device.
type pathMTU struct {
	bytes int
	why   string // "" if it is
}

// pathTo returns the MTU of the path to a host. Until it was found, it is that of the smaller of the two devices, or what
// an earlier node of this host has found.
func (w ways) pathTo(h registry.Host, prober *probe.Prober, before int) pathMTU {
	p := pathMTU{bytes: w.mtu}
	if h.MTU > 0 && h.MTU < p.bytes {
		p = pathMTU{h.MTU, fmt.Sprintf("the device of %s passes no more than %d", h.Name, h.MTU)}
	}
	found, ok := prober.PathMTU(h.Name)
	if !ok {
		found = cmp.Or(before, p.bytes)
	}
	if found < p.bytes {
		p = pathMTU{found, fmt.Sprintf("the path passes no more than %d", found)}
	}
	return p
}

// pathBefore returns the MTU of the path to a host as the routes to its blocks in the kernel have it; 0 if they have none.
func pathBefore(by span.By, h registry.Host, blocks map[netip.Prefix]span.BlockRoute, prefixes []netip.Prefix) int {
	for _, b := range prefixes {
		if was := blocks[b]; was.MTU > 0 && b.Addr().Is4() {
			if was.Plain {
				return was.MTU
			}
			return was.MTU + span.OverheadFor(by, h.Address)
		}
	}
	return 0
}

// packets returns the size of the largest packets between containers of different hosts, in bytes; 0 if it is that of
// this host's device. A pair of hosts whose packets are plain now may need VXLAN later.
func (w ways) packets(s overlay.State) int {
	n, _ := overhead(s, s.Self)
	if n == 0 {
		return 0
	}
	return w.mtu - n
}

// CheckPackets implements overlay.PacketChecker. A host that joins may have a smaller device than the links of
// containers: packets then fit its path (pathTo). But no host can be too small for IPv6.
func (d *dataplane) CheckPackets(n registry.Network, s overlay.State, joins bool) error {
	spec, err := specOf(n)
	if err != nil {
		return err
	}
	e := &overlay.PacketsError{Network: n.Name, Why: overlay.ForMTU, Bytes: spec.MTU}
	hosts := append(slices.Clone(s.Hosts), s.Self)
	if joins {
		e.Bytes, hosts = 0, hosts[len(hosts)-1:]
	}
	if e.Bytes < span.MinMTU6 && slices.ContainsFunc(n.Subnets, func(sub registry.Subnet) bool { return sub.Prefix.Addr().Is6() }) {
		e.Why, e.Bytes = overlay.ForIPv6, span.MinMTU6
	}
	for _, h := range hosts {
		n, way := overhead(s, h)
		e.Host, e.MTU, e.Most, e.Way = h.Name, h.MTU, h.MTU-n, way
		if h.MTU > 0 && e.Most < e.Bytes {
			return e
		}
	}
	return nil
}

// Overheads of tunnels, in bytes: the outer IP and UDP headers, those of the tunnel, and an authenticator (package
// tunnel/spec).
const (
	tunnelOverhead4 = 20 + 8 + 24 + 16
	tunnelOverhead6 = 40 + 8 + 24 + 16
)

// overhead returns the largest overhead of packets between a host and another one, in bytes, and by which way. It is 0
// if all packets are plain. A host without others gets some.
func overhead(s overlay.State, h registry.Host) (most int, by string) {
	all := append(slices.Clone(s.Hosts), s.Self)
	if len(all) == 1 {
		all = []registry.Host{{Name: "another"}}
	}
	s.Self = h
	title := map[string]string{overlay.Auto: "VXLAN", overlay.VXLAN: "VXLAN", overlay.Geneve: "Geneve", overlay.WireGuardWay: "WireGuard"}
	for _, o := range all {
		choice, err := s.Between(o)
		if o.Name == h.Name || err != nil || choice == overlay.Routes {
			continue
		}
		n, name := span.OverheadFor(way{choice: choice}.by(), h.Address), title[choice]
		switch {
		case choice == overlay.Auto && overlay.HasTunnel(h, o) && h.Address.Is4():
			n, name = tunnelOverhead4, "a tunnel"
		case choice == overlay.Auto && overlay.HasTunnel(h, o):
			n, name = tunnelOverhead6, "a tunnel"
		}
		if n > most {
			most, by = n, name
		}
	}
	return most, by
}
