package overlay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"cleat/overlay/registry"
)

// A host's address may change while it runs, or while it does not. The host tells all others through their gates,
// because those that are no members of the registry find the registry only by the addresses of its members. Then it
// changes its record.

// moved is a host's new address.
type moved struct {
	Address netip.Addr `json:"address"`
	MTU     int        `json:"mtu"`
}

// SourceFor returns the address of this host from which packets to others leave; without others, that of the default
// route. ok is false if there is no such route.
func SourceFor(others []netip.AddrPort) (a netip.Addr, ok bool) {
	if len(others) == 0 {
		others = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:9"), netip.MustParseAddrPort("[2001:db8::1]:9")}
	}
	for _, to := range others {
		c, err := net.Dial("udp", to.String()) // sends nothing: it looks up the route
		if err != nil {
			continue
		}
		c.Close()
		if at, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil {
			return at.Addr().Unmap(), true
		}
	}
	return netip.Addr{}, false
}

// MTUOf returns the MTU of the device that has an address, in bytes.
func MTUOf(a netip.Addr) (int, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("find the device of %s: %w", a, err)
	}
	for _, d := range devices {
		addrs, err := d.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, one := range addrs {
			if p, err := netip.ParsePrefix(one.String()); err == nil && p.Addr().Unmap() == a {
				return d.MTU, nil
			}
		}
	}
	return 0, fmt.Errorf("this host does not have the address %s", a)
}

// isLocal reports whether this host has an address.
func isLocal(a netip.Addr) bool {
	c, err := net.ListenPacket("udp", netip.AddrPortFrom(a, 0).String())
	if err == nil {
		c.Close()
	}
	return !errors.Is(err, syscall.EADDRNOTAVAIL)
}

// followAddress makes the cluster know this host's address.
func (n *Node) followAddress(ctx context.Context) error {
	s := n.self()
	n.mu.Lock()
	record, known := n.mirror.Hosts[s.Host]
	ready := n.listed && n.answers
	n.mu.Unlock()
	local := isLocal(s.Address)
	if local && !known {
		return nil
	}
	if local && record.Address == s.Address && !n.unregistered {
		return n.followMTU(ctx, record, ready)
	}
	others := n.otherHosts()
	if !local {
		a, ok := SourceFor(gates(others))
		if !ok || !isLocal(a) {
			return fmt.Errorf("this host has lost its address %s, and has no route to the others", s.Address)
		}
		n.cfg.Log("this host's address is %s now, and was %s", a, s.Address)
		s.Address = a
		n.mu.Lock()
		n.settings.Address = a
		err := n.dir.writeSettings(*n.settings)
		n.mu.Unlock()
		if err != nil {
			return err
		}
	}
	if !known {
		return nil
	}
	mtu, err := MTUOf(s.Address)
	if err != nil {
		return err
	}
	n.hostMoved(s.Host, moved{s.Address, mtu})
	n.askAll(ctx, others, hostRequest{Moved: &moved{s.Address, mtu}})
	if !ready {
		n.unregistered = true
		return nil
	}
	n.unregistered = true // the mirror has it already
	err = n.registry.ChangeHost(ctx, s.Host, func(h *registry.Host) { h.Address, h.MTU = s.Address, mtu })
	n.unregistered = err != nil
	return err
}

// followMTU makes the cluster know the MTU of this host's device, which may change while the address stays.
func (n *Node) followMTU(ctx context.Context, record registry.Host, ready bool) error {
	k, ok := n.cfg.Dataplane.(MTUKnower)
	if !ok || !ready {
		return nil
	}
	mtu := k.UplinkMTU()
	if mtu == 0 || mtu == record.MTU {
		return nil
	}
	n.cfg.Log("the MTU of this host's device is %d now, and was %d", mtu, record.MTU)
	return n.registry.ChangeHost(ctx, record.Name, func(h *registry.Host) { h.MTU = mtu })
}

// otherHosts returns the hosts of the cluster without this one.
func (n *Node) otherHosts() []registry.Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	others := make([]registry.Host, 0, len(n.mirror.Hosts))
	for _, h := range n.mirror.Hosts {
		if h.Name != n.settings.Host {
			others = append(others, h)
		}
	}
	return others
}

// askAll sends a request to hosts, as far as they can be reached.
func (n *Node) askAll(ctx context.Context, hosts []registry.Host, r hostRequest) {
	var asking sync.WaitGroup
	const atOnce = 32
	for some := range slices.Chunk(hosts, atOnce) {
		for _, h := range some {
			asking.Go(func() { _, _ = n.askHost(ctx, h, r) })
		}
		asking.Wait()
	}
}

// hostMoved takes another host's address into the mirror, before the registry has it.
func (n *Node) hostMoved(host string, m moved) {
	n.mu.Lock()
	h, known := n.mirror.Hosts[host]
	n.mu.Unlock()
	if !known || h.Address == m.Address || !m.Address.IsValid() {
		return
	}
	if host != n.settings.Host {
		n.cfg.Log("host %s has the address %s now, and had %s", host, m.Address, h.Address)
	}
	h.Address, h.MTU = m.Address, m.MTU
	n.update(registry.Update{Changes: []registry.Change{{Host: &h}}})
}
