package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"cleat/overlay/registry"
)

// claimBlocks gets this host a block of each subnet of which it has none.
func (n *Node) claimBlocks(ctx context.Context) error {
	n.mu.Lock()
	due := n.listed && n.answers && n.mirror.lacksBlocks(n.settings.Host)
	n.mu.Unlock()
	if !due {
		return nil
	}
	errs := []error{n.reclaim(ctx)}
	n.mu.Lock()
	m := n.mirror.copy() // with what reclaim got
	n.mu.Unlock()
	for _, net := range m.Networks {
		for _, sub := range net.Subnets {
			if !m.hasBlock(net.Name, sub, n.settings.Host) {
				_, err := n.claimBlock(ctx, m, net.Name, sub)
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// lacksBlocks reports whether a host has no block of a subnet, or the registry lacks what a host has.
func (m *mirror) lacksBlocks(host string) bool {
	for _, net := range m.Networks {
		for _, sub := range net.Subnets {
			if !m.hasBlock(net.Name, sub, host) {
				return true
			}
		}
	}
	return len(m.Lost) > 0
}

// hasBlock reports whether a host has a block of a subnet.
func (m *mirror) hasBlock(network string, s registry.Subnet, host string) bool {
	for _, b := range m.Blocks[network] {
		if b.Host == host && s.Prefix.Contains(b.Prefix.Addr()) && b.Prefix.Bits() == s.BlockBits {
			return true
		}
	}
	return false
}

// NoBlockError means that a network has no addresses left for another host.
type NoBlockError struct {
	Network string
	Subnet  registry.Subnet
}

func (e *NoBlockError) Error() string {
	return fmt.Sprintf("network %s is full: all blocks of %s belong to hosts, and none of these has an address to spare", e.Network, e.Subnet.Prefix)
}

// claimBlock gets this host a block of a subnet. Blocks that others have claimed meanwhile are noted in m.
func (n *Node) claimBlock(ctx context.Context, m *mirror, network string, s registry.Subnet) (netip.Prefix, error) {
	for {
		p, ok := freeBlock(network, s, m.Blocks[network], n.settings.Host)
		if !ok {
			return p, &NoBlockError{network, s}
		}
		b := registry.Block{Network: network, Prefix: p, Host: n.settings.Host}
		ok, err := n.registry.ClaimBlock(ctx, b)
		if err != nil {
			return p, err
		}
		if ok {
			n.took(b)
			return p, nil
		}
		if _, err := n.registry.Host(ctx, n.settings.Host); err != nil {
			return p, err
		}
		n.mu.Lock()
		_, exists := n.mirror.Networks[network]
		n.mu.Unlock()
		if !exists {
			return p, &registry.NotFoundError{What: "network " + network}
		}
		if m.Blocks[network] == nil {
			m.Blocks[network] = map[string]registry.Block{}
		}
		b.Host = "another"
		m.Blocks[network][p.String()] = b
		if len(m.Blocks[network]) > 1<<16 {
			return p, &NoBlockError{network, s}
		}
	}
}

// took notes in the mirror that this host has a block, before the registry tells.
func (n *Node) took(b registry.Block) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, exists := n.mirror.Networks[b.Network]; !exists {
		return
	}
	n.mirror.change(registry.Change{Block: &b}, &changed{})
	n.changes++
	signal(n.apply)
}
