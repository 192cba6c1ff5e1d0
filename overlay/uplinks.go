package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"cleat/overlay/registry"
)

// Two hosts of which one has several uplinks are joined by a tunnel that uses all of them at once. Each host says in
// its record what the other ends need to know: the addresses of its uplinks, its key, and the UDP port at which its end
// of each tunnel is.

// TunnelPorts are the UDP ports of tunnels' ends, as many as a host can have.
const (
	FirstTunnelPort = 7800
	LastTunnelPort  = 7899
)

// HasTunnel reports whether a tunnel joins two hosts.
func HasTunnel(a, b registry.Host) bool { return len(a.Uplinks) > 1 || len(b.Uplinks) > 1 }

// UplinkAddress returns the first global address of a family that a device has.
func UplinkAddress(device string, is6 bool) (netip.Addr, error) {
	d, err := net.InterfaceByName(device)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("uplink %s: no such device", device)
	}
	all, err := d.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("uplink %s: %w", device, err)
	}
	for _, one := range all {
		if p, err := netip.ParsePrefix(one.String()); err == nil {
			if a := p.Addr().Unmap(); a.Is6() == is6 && a.IsGlobalUnicast() {
				return a, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("uplink %s has no address of %s", device, map[bool]string{true: "IPv6", false: "IPv4"}[is6])
}

// followUplinks makes the registry's record of this host say what tunnels to it need.
func (n *Node) followUplinks(ctx context.Context) error {
	t, ok := n.cfg.Dataplane.(Tunneler)
	n.mu.Lock()
	self, known := n.mirror.Hosts[n.settings.Host]
	hosts := maps.Clone(n.mirror.Hosts)
	devices, ready := n.settings.Uplinks, n.listed && n.answers
	n.mu.Unlock()
	if !ok || !known || !ready {
		return nil
	}
	want := self
	want.Uplinks, want.TunnelPorts = nil, nil
	var lost []error
	for i, d := range devices {
		a, err := UplinkAddress(d, self.Address.Is6())
		if err != nil {
			lost = append(lost, err)
			if i >= len(self.Uplinks) {
				continue
			}
			a = self.Uplinks[i] // it may come back
		}
		want.Uplinks = append(want.Uplinks, a)
	}
	delete(hosts, self.Name)
	var err error
	if want.TunnelPorts, err = tunnelPorts(want, self.TunnelPorts, hosts); err != nil {
		lost = append(lost, err) // some have none
	}
	if len(want.TunnelPorts) == 0 {
		want.TunnelKey = ""
	} else if want.TunnelKey, err = t.TunnelKey(); err != nil {
		return err
	}
	if slices.Equal(want.Uplinks, self.Uplinks) && want.TunnelKey == self.TunnelKey && maps.Equal(want.TunnelPorts, self.TunnelPorts) {
		return errors.Join(lost...)
	}
	return errors.Join(append(lost, n.registry.ChangeHost(ctx, self.Name, func(h *registry.Host) {
		h.Uplinks, h.TunnelKey, h.TunnelPorts = want.Uplinks, want.TunnelKey, want.TunnelPorts
	}))...)
}

// tunnelPorts returns the ports of a host's tunnels to others. A tunnel keeps its port. With an error, there are more
// tunnels than ports, and the ports are those of the first ones.
func tunnelPorts(self registry.Host, old map[string]uint16, others map[string]registry.Host) (map[string]uint16, error) {
	ports, taken := map[string]uint16{}, map[uint16]bool{}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(others)) {
		switch {
		case !HasTunnel(self, others[name]):
		case old[name] != 0:
			ports[name], taken[old[name]] = old[name], true
		default:
			missing = append(missing, name)
		}
	}
	next := uint16(FirstTunnelPort)
	for _, name := range missing {
		for taken[next] {
			next++
		}
		if next > LastTunnelPort {
			return ports, fmt.Errorf("host %s can't have more than %d tunnels; it has none to host %s and those after it, and reaches them without", self.Name, LastTunnelPort-FirstTunnelPort+1, name)
		}
		ports[name], taken[next] = next, true
	}
	if len(ports) == 0 {
		return nil, nil
	}
	return ports, nil
}
