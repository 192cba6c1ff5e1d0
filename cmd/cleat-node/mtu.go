package main

import (
	"cmp"
	"fmt"
	"net/netip"

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

func (d *dataplane) setMTU(bytes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mtu = bytes
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
func pathBefore(h registry.Host, blocks map[netip.Prefix]span.BlockRoute, prefixes []netip.Prefix) int {
	for _, b := range prefixes {
		if was := blocks[b]; was.MTU > 0 && b.Addr().Is4() {
			if was.Plain {
				return was.MTU
			}
			return was.MTU + span.OverheadFor(h.Address)
		}
	}
	return 0
}

// packets returns the size of the largest packets between containers of different hosts, in bytes; 0 if it is that of
// this host's device. A pair of hosts whose packets are plain now may need VXLAN later.
func (w ways) packets(s overlay.State) int {
	own, err := s.Between(s.Self)
	plain := err == nil && own == overlay.Routes
	for _, one := range w.hosts {
		plain = plain && one.choice == overlay.Routes
	}
	if plain {
		return 0
	}
	return span.PacketsTo(s.Self.Address, w.mtu, false)
}
