package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"cleat/overlay/registry"
)

// Single addresses move between hosts by consent: the host that has an address, by a block or alone, gives it to
// another one that asks, unless a container has it. The owner of the block remembers it as lent. It gets the address
// back when it asks, or when the other host gives it back. Nobody takes an address from a host that does not answer:
// its containers may run.

// loan is an address that a host asks another one for, or gets.
type loan struct {
	Network string     `json:"network"`
	Address netip.Addr `json:"address,omitzero"` // not valid in a request: any
	// Subnet is what any address is to be of. Hosts of an earlier version neither send nor read it.
	Subnet netip.Prefix `json:"subnet,omitzero"`
}

// DeadOwnerError means that the host that has an address does not answer.
type DeadOwnerError struct {
	Address netip.Addr
	Host    string
	Err     error
}

func (e *DeadOwnerError) Error() string {
	return fmt.Sprintf("address %s belongs to host %s, which does not answer: %v", e.Address, e.Host, e.Err)
}

func (e *DeadOwnerError) Unwrap() error { return e.Err }

// owner returns the block that an address belongs to: the narrowest one.
func (m *mirror) owner(network string, a netip.Addr) (b registry.Block, ok bool) {
	for _, one := range m.Blocks[network] {
		if one.Prefix.Contains(a) && (!ok || one.Prefix.Bits() > b.Prefix.Bits()) {
			b, ok = one, true
		}
	}
	return b, ok
}

// encloses reports whether a host has a block that has an address among others.
func (m *mirror) encloses(network string, a netip.Addr, host string) bool {
	for _, one := range m.Blocks[network] {
		if one.Host == host && one.Prefix.Contains(a) && !one.Prefix.IsSingleIP() {
			return true
		}
	}
	return false
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// lend gives an address of this host to another one.
func (n *Node) lend(ctx context.Context, host string, l loan) (*loan, error) {
	n.mu.Lock()
	m := n.mirror.copy()
	n.mu.Unlock()
	self := n.settings.Host
	if l.Address.IsValid() {
		if b, ok := m.owner(l.Network, l.Address); !ok || b.Host != self {
			return nil, fmt.Errorf("host %s does not have the address %s", self, l.Address)
		}
	}
	a, err := n.reserve(ctx, l, host)
	if err != nil {
		return nil, err
	}
	b := registry.Block{Network: l.Network, Prefix: single(a), Host: self}
	to := b
	to.Host = host
	switch borrowed := m.Blocks[l.Network][b.Prefix.String()].Host == self; {
	case m.encloses(l.Network, a, host):
		err = n.registry.ReleaseBlock(ctx, b)
	case borrowed:
		err = n.registry.PassBlock(ctx, b, to)
	default:
		var ok bool
		if ok, err = n.registry.ClaimBlock(ctx, to); err == nil && !ok {
			err = fmt.Errorf("another host has the address %s", a)
		}
	}
	if !errors.As(err, new(*registry.UnreachableError)) { // otherwise nobody knows, for now
		n.mu.Lock()
		delete(n.lending, loan{Network: l.Network, Address: a})
		if err == nil { // before the registry tells: until then no container here may get the address
			n.mirror.change(registry.Change{Block: &to, Removed: m.encloses(l.Network, a, host)}, &changed{endpoints: map[endpointsOf]bool{}})
		}
		n.changes++
		n.mu.Unlock()
		signal(n.apply)
	}
	if err != nil {
		return nil, err
	}
	n.cfg.Log("address %s of network %s goes to host %s", a, l.Network, host)
	return &loan{Network: l.Network, Address: a}, nil
}

// lendFor is how long an address is kept for another host until the registry says that it has it. It is much longer
// than a request takes that was given up, and that the registry may yet carry out.
const lendFor = time.Minute

// reserve keeps an address of this host for another one. No container gets it any more.
func (n *Node) reserve(ctx context.Context, l loan, host string) (netip.Addr, error) {
	n.lends.Lock() // so that the address is among those lent before Apply looks at them
	defer n.lends.Unlock()
	a, err := n.cfg.Dataplane.Lend(ctx, l.Network, l.Address, l.Subnet, host)
	if err != nil {
		return a, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lending[loan{Network: l.Network, Address: a}] = time.Now().Add(lendFor)
	for old, until := range n.lending {
		if time.Now().After(until) {
			delete(n.lending, old)
		}
	}
	return a, nil
}

// moreAddresses gets this host more addresses of a network, for a request.
func (n *Node) moreAddresses(ctx context.Context, r *http.Request) (any, error) {
	name := r.PathValue("name")
	var wanted netip.Addr
	if text := r.FormValue("address"); text != "" {
		var err error
		if wanted, err = netip.ParseAddr(text); err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
	}
	n.mu.Lock()
	m := n.mirror.copy()
	n.mu.Unlock()
	net, ok := m.Networks[name]
	if !ok {
		return nil, &registry.NotFoundError{What: "network " + name + " that spans hosts"}
	}
	if wanted.IsValid() {
		return struct{}{}, n.bring(ctx, m, net, wanted)
	}
	for _, s := range net.Subnets {
		if err := n.moreOf(ctx, m, net, s); err != nil {
			return nil, err
		}
	}
	return struct{}{}, nil
}

// moreOf gets this host a block of a subnet or, if none is left, an address of another host.
func (n *Node) moreOf(ctx context.Context, m *mirror, net registry.Network, s registry.Subnet) error {
	p, err := n.claimBlock(ctx, m, net.Name, s)
	var none *NoBlockError
	if errors.As(err, &none) {
		p, err = n.borrow(ctx, m, net, s, none)
	}
	if err != nil {
		return err
	}
	return n.waitApplied(ctx, func(m *mirror) bool { return m.Blocks[net.Name][p.String()].Host == n.settings.Host })
}

// borrow gets this host an address of one that has some to spare.
func (n *Node) borrow(ctx context.Context, m *mirror, net registry.Network, s registry.Subnet, none error) (netip.Prefix, error) {
	asked := map[string]bool{n.settings.Host: true}
	for _, b := range m.Blocks[net.Name] {
		if asked[b.Host] || !s.Prefix.Contains(b.Prefix.Addr()) || b.Prefix.IsSingleIP() || !n.isAlive(b.Host) {
			continue
		}
		asked[b.Host] = true
		answer, err := n.askHost(ctx, m.Hosts[b.Host], hostRequest{Lend: &loan{Network: net.Name, Subnet: s.Prefix}})
		if err == nil && answer.Loan != nil && s.Prefix.Contains(answer.Loan.Address) {
			return single(answer.Loan.Address), nil
		}
	}
	return netip.Prefix{}, none
}

func (n *Node) isAlive(host string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, lives := n.mirror.alive[host]
	return lives
}

// bring gets this host an address that another one has, or that nobody has yet.
func (n *Node) bring(ctx context.Context, m *mirror, net registry.Network, a netip.Addr) error {
	self := n.settings.Host
	owner, ok := m.owner(net.Name, a)
	switch {
	case ok && owner.Host == self:
	case !ok:
		i := subnetOf(net, a)
		if i < 0 {
			return fmt.Errorf("address %s is in no subnet of network %s", a, net.Name)
		}
		p, _ := a.Prefix(net.Subnets[i].BlockBits)
		ok, err := n.registry.ClaimBlock(ctx, registry.Block{Network: net.Name, Prefix: p, Host: self})
		if err == nil && !ok {
			err = fmt.Errorf("another host has just taken the block %s of network %s", p, net.Name)
		}
		if err != nil {
			return err
		}
	case !n.isAlive(owner.Host):
		return &DeadOwnerError{a, owner.Host, errors.New("it is not alive")}
	default:
		if _, err := n.askHost(ctx, m.Hosts[owner.Host], hostRequest{Lend: &loan{Network: net.Name, Address: a}}); err != nil {
			return err
		}
	}
	return n.waitApplied(ctx, func(m *mirror) bool {
		b, ok := m.owner(net.Name, a)
		return ok && b.Host == self
	})
}

// subnetOf returns the index of the subnet that has an address; -1 if none has.
func subnetOf(n registry.Network, a netip.Addr) int {
	for i, s := range n.Subnets {
		if s.Prefix.Contains(a) {
			return i
		}
	}
	return -1
}
