package attach

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cleat/network/rules"

	"golang.org/x/sys/unix"
)

// masquerade plans to make the host the gateway of the bridge's networks.
func (p *planner) masquerade() error {
	for _, ip := range p.spec.Addresses {
		if err := p.checkOverlap(ip); err != nil {
			return err
		}
		gw, err := p.gatewayIn(ip)
		if err != nil {
			return err
		}
		p.add(BridgeAddress{Bridge: p.spec.Parent, Prefix: netip.PrefixFrom(gw, ip.Bits())})
		if f := (Forwarding{Family: ipVersion(gw)}); !slices.Contains(p.steps, Step(f)) {
			p.add(f)
		}
		p.add(Masquerade{Bridge: p.spec.Parent, Network: ip.Masked()})
	}
	return nil
}

// gatewayIn returns the gateway of an address's network: that of the spec, or the first
// address of the network. The latter becomes the container's default gateway if the container
// has none.
func (p *planner) gatewayIn(ip netip.Prefix) (netip.Addr, error) {
	sameFamily := false
	for _, g := range p.spec.Gateways {
		if ip.Contains(g) {
			return g, nil
		}
		sameFamily = sameFamily || g.Is4() == ip.Addr().Is4()
	}
	first := ip.Masked().Addr().Next()
	if slices.ContainsFunc(p.spec.Addresses, func(own netip.Prefix) bool { return own.Addr() == first }) {
		return first, &SpecError{Param: "ip", Value: first.String(), Reason: "is the address that the host gets as the gateway; choose another one, or set the gateway with --gw"}
	}
	if sameFamily {
		return first, nil
	}
	old, err := p.cont.defaultRoute(familyOf(first))
	if err != nil {
		return first, err
	}
	if old != nil {
		p.note("the container keeps its default route; --gw replaces it")
		return first, nil
	}
	p.spec.Gateways = append(p.spec.Gateways, first)
	return first, nil
}

// checkOverlap rejects an address that the host reaches through another link without a
// router. The bridge would take the network away from that link, and the host could cut
// itself off.
func (p *planner) checkOverlap(ip netip.Prefix) error {
	r, l, err := p.host.routeTo(ip.Addr(), nil)
	if r == nil {
		return err
	}
	switch {
	case r.Type == unix.RTN_LOCAL:
		return &TakenError{Resource: "address", Name: ip.Addr().String(), Owner: "the host itself"}
	case r.Gw != nil || r.Via != nil || l.Attrs().RawFlags&unix.IFF_POINTOPOINT != 0 || l.Attrs().Name == p.spec.Parent:
		return nil
	}
	return &TakenError{Resource: "network", Name: ip.Masked().String(), Owner: "the host's " + l.Attrs().Name}
}

// BridgeAddress adds an address to a bridge, so that the host is the gateway of its network.
type BridgeAddress struct {
	Bridge string       `json:"bridge"`
	Prefix netip.Prefix `json:"prefix"`
}

func (s BridgeAddress) String() string {
	return fmt.Sprintf("add address %s to bridge %s", s.Prefix, s.Bridge)
}

func (s BridgeAddress) check(r *run) error {
	return ClaimAddress{Network: s.Bridge, Addr: s.Prefix.Addr().String()}.check(r)
}

// do fails if a container on the bridge has the address.
func (s BridgeAddress) do(r *run) error {
	addr := s.Prefix.Addr().String()
	if owner, err := os.Readlink(r.claimPath(s.Bridge, addr)); err == nil && !r.retireIfGone(r.ctx, owner) {
		return r.store.taken("address", addr, owner)
	}
	return r.use(s)
}

func (s BridgeAddress) key() string { return "address " + s.Bridge + " " + s.Prefix.String() }

func (s BridgeAddress) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Bridge)
	if l == nil {
		return false, err
	}
	if a := s.Prefix.Addr(); !a.IsLinkLocalUnicast() && r.host.isLocal(a) { // faster than listing all addresses
		return true, nil
	}
	return r.host.hasAddr(l, s.Prefix) // an IPv6 address has no route while its link has no carrier
}

func (s BridgeAddress) create(r *run, record func(Undo) error) error {
	l, err := r.host.mustFind(s.Bridge)
	if err != nil {
		return err
	}
	if had, err := r.host.hasAddr(l, s.Prefix); err != nil || had {
		return err
	}
	if err := record(Undo{Address: &undoAddress{NS: r.host.ref, Index: l.Attrs().Index, Prefix: s.Prefix}}); err != nil {
		return err
	}
	return r.host.withIPv6(s.Bridge, func() error { return r.host.addAddr(l.Attrs().Index, s.Prefix) })
}

// Forwarding enables forwarding on the host for one address family.
type Forwarding struct {
	Family int `json:"family"` // 4 or 6
}

func (s Forwarding) String() string {
	return fmt.Sprintf("enable IPv%d forwarding on the host", s.Family)
}

func (s Forwarding) do(r *run) error { return r.use(s) }

func (s Forwarding) key() string { return fmt.Sprintf("forwarding %d", s.Family) }

func (s Forwarding) conf() string { return fmt.Sprintf("/proc/sys/net/ipv%d/conf", s.Family) }

func (s Forwarding) path() string { return filepath.Join(s.conf(), "all/forwarding") }

func (s Forwarding) exists(r *run) (bool, error) { return r.host.sysctlOn(s.path()) }

// sysctlOn reports whether a parameter below /proc/sys is 1.
func (n *namespace) sysctlOn(path string) (on bool, err error) {
	err = n.ns.Do(func() error {
		on, err = isOne(path)
		return err
	})
	return on, err
}

func isOne(path string) (bool, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(b)) == "1", nil
}

// create enables forwarding if it is disabled. The kernel then also sets it for every device
// and changes accept_redirects, so settings that differed are recorded.
func (s Forwarding) create(r *run, record func(Undo) error) error {
	return r.host.ns.Do(func() error {
		on, err := isOne(s.path())
		if err != nil || on {
			return err
		}
		m := undoSysctl{NS: r.host.ref, Path: s.path(), Before: "0", Set: "1"}
		if m.Also, err = s.exceptions(); err != nil {
			return err
		}
		if err := record(Undo{Sysctl: &m}); err != nil {
			return err
		}
		return os.WriteFile(s.path(), []byte("1"), 0)
	})
}

// exceptions returns the settings that enabling and disabling forwarding would lose.
func (s Forwarding) exceptions() (map[string]string, error) {
	all, err := os.ReadDir(s.conf())
	if err != nil {
		return nil, fmt.Errorf("list sysctls: %w", err)
	}
	also := map[string]string{}
	for _, link := range all {
		path := filepath.Join(s.conf(), link.Name(), "forwarding")
		if on, err := isOne(path); err == nil && on {
			also[path] = "1"
		}
	}
	redirects := filepath.Join(s.conf(), "all/accept_redirects")
	if on, err := isOne(redirects); s.Family == 4 && err == nil && !on {
		also[redirects] = "0"
	}
	return also, nil
}

// undoSysctl restores parameters below /proc/sys, unless somebody else has changed them.
type undoSysctl struct {
	NS     nsRef             `json:"where"`
	Path   string            `json:"path"`
	Before string            `json:"was"`
	Set    string            `json:"set"`
	Also   map[string]string `json:"also,omitempty"` // values to set after Before is restored
}

func (m *undoSysctl) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	return n.ns.Do(func() error {
		now, err := os.ReadFile(m.Path)
		if err == nil && strings.TrimSpace(string(now)) == m.Set {
			err = os.WriteFile(m.Path, []byte(m.Before), 0)
		}
		if err != nil {
			return fmt.Errorf("restore sysctl: %w", err)
		}
		for path, value := range m.Also {
			err := os.WriteFile(path, []byte(value), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) { // the device is gone
				return fmt.Errorf("restore sysctl: %w", err)
			}
		}
		return nil
	})
}

// Masquerade gives packets that leave a network through another device than its bridge the
// host's address.
type Masquerade struct {
	Bridge  string       `json:"bridge"`
	Network netip.Prefix `json:"network"`
}

func (s Masquerade) String() string {
	return fmt.Sprintf("masquerade packets from %s that leave bridge %s", s.Network, s.Bridge)
}

func (s Masquerade) do(r *run) error { return r.use(s) }

func (s Masquerade) key() string { return "masquerade " + s.Bridge + " " + s.Network.String() }

// rules returns the nftables table of the store for a network's address family. It is changed
// only with the lock on the store's shared resources held.
func (s *Store) rules(in *namespace, network netip.Prefix) rules.Table {
	name := "cleat"
	if !s.IsDefault() {
		h := fnv.New32a()
		h.Write([]byte(s.Path()))
		name = fmt.Sprintf("cleat-%08x", h.Sum32())
	}
	return rules.Table{NS: in.ns, Name: name, IPv6: network.Addr().Is6()}
}

func (s Masquerade) exists(r *run) (bool, error) {
	return r.store.rules(r.host, s.Network).Has(s.key())
}

func (s Masquerade) create(r *run, record func(Undo) error) error {
	if err := record(Undo{Rule: &undoRule{NS: r.host.ref, Network: s.Network, Comment: s.key()}}); err != nil {
		return err
	}
	return r.store.rules(r.host, s.Network).Masquerade(s.key(), s.Network, s.Bridge)
}

type undoRule struct {
	NS      nsRef        `json:"where"`
	Network netip.Prefix `json:"network"`
	Comment string       `json:"comment"`
}

func (m *undoRule) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	return u.store.rules(n, m.Network).Remove(m.Comment)
}
