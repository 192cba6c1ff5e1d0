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

// masquerade makes the host the gateway of those on the bridge.
func (p *planner) masquerade() error {
	families := map[int]bool{}
	for _, ip := range p.spec.Addresses {
		if err := p.checkOverlap(ip); err != nil {
			return err
		}
		gw, err := p.gatewayIn(ip)
		if err != nil {
			return err
		}
		p.add(BridgeAddress{Bridge: p.spec.Parent, Prefix: netip.PrefixFrom(gw, ip.Bits())})
		family := 4
		if ip.Addr().Is6() {
			family = 6
		}
		if !families[family] {
			p.add(Forwarding{Family: family})
		}
		families[family] = true
		p.add(Masquerade{Bridge: p.spec.Parent, Network: ip.Masked()})
	}
	return nil
}

// gatewayIn is the gateway in an address's network: the one given, or the first
// address. That is then the container's default gateway, too, if it has none.
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
		return first, &SpecError{Param: "ip", Value: first.String(), Reason: "is what the host would have, as the gateway: give the container another address, or the host by --gw"}
	}
	if sameFamily {
		return first, nil
	}
	old, err := defaultRoute(p.cont, familyOf(first))
	if err != nil {
		return first, err
	}
	if old != nil {
		p.note("the container has a default route already, which stays: give a gateway to have this one instead")
		return first, nil
	}
	p.spec.Gateways = append(p.spec.Gateways, first)
	return first, nil
}

// apart is nil if the host reaches ip's address by no other link than the bridge, by
// routers at most: else the bridge would take a network from that link, and the host
// could cut itself off.
func (p *planner) checkOverlap(ip netip.Prefix) error {
	r, l, err := routeTo(p.host, ip.Addr(), nil)
	if err != nil || r == nil {
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

// BridgeAddress gives a bridge an address, so that the host is the gateway of
// those on it.
type BridgeAddress struct {
	Bridge string       `json:"bridge"`
	Prefix netip.Prefix `json:"prefix"`
}

func (s BridgeAddress) String() string {
	return fmt.Sprintf("give bridge %s the address %s", s.Bridge, s.Prefix)
}

func (s BridgeAddress) check(r *run) error {
	return ClaimAddress{Network: s.Bridge, Addr: s.Prefix.Addr().String()}.check(r)
}

// do refuses an address that a container on the bridge has.
func (s BridgeAddress) do(r *run) error {
	addr := s.Prefix.Addr().String()
	if holder, err := os.Readlink(r.claim(s.Bridge, addr)); err == nil && !r.store.retireIfGone(r.ctx, holder, r.host, r.testHook) {
		return r.store.taken("address", addr, holder)
	}
	return r.use(s)
}

func (s BridgeAddress) key() string { return "address " + s.Bridge + " " + s.Prefix.String() }

func (s BridgeAddress) exists(r *run) (bool, error) {
	l, err := r.host.find(s.Bridge)
	if err != nil || l == nil {
		return false, err
	}
	return hasAddress(r.host, s.Prefix.Addr()), nil // without a list of all there are
}

func (s BridgeAddress) create(r *run, note func(Undo) error) error {
	l, err := r.host.LinkByName(s.Bridge)
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", s.Bridge, err)
	}
	if had, err := hasAddr(r.host, l, s.Prefix); err != nil || had {
		return err
	}
	if err := note(Undo{Address: &undoAddress{NS: r.host.ref, Index: l.Attrs().Index, Prefix: s.Prefix.String()}}); err != nil {
		return err
	}
	return addAddr(r.host, l.Attrs().Index, s.Prefix)
}

// Forwarding has the host pass packets of one family on.
type Forwarding struct {
	Family int `json:"family"` // 4 or 6
}

func (s Forwarding) String() string { return "have the host forward IPv" + fmt.Sprint(s.Family) }

func (s Forwarding) do(r *run) error { return r.use(s) }

func (s Forwarding) key() string { return fmt.Sprintf("forwarding %d", s.Family) }

func (s Forwarding) conf() string { return fmt.Sprintf("/proc/sys/net/ipv%d/conf", s.Family) }

func (s Forwarding) path() string { return filepath.Join(s.conf(), "all/forwarding") }

func (s Forwarding) exists(r *run) (on bool, err error) {
	err = r.host.ns.Do(func() error {
		on, err = sysctlOn(s.path())
		return err
	})
	return on, err
}

func sysctlOn(path string) (bool, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(b)) == "1", nil
}

// make switches it on where it is off. The kernel then sets it for every device,
// and switches redirects, so what was different is noted.
func (s Forwarding) create(r *run, note func(Undo) error) error {
	return r.host.ns.Do(func() error {
		on, err := sysctlOn(s.path())
		if err != nil || on {
			return err
		}
		m := undoSysctl{NS: r.host.ref, Path: s.path(), Before: "0", Set: "1"}
		if m.Also, err = s.exceptions(); err != nil {
			return err
		}
		if err := note(Undo{Sysctl: &m}); err != nil {
			return err
		}
		return os.WriteFile(s.path(), []byte("1"), 0)
	})
}

// exceptions are settings that switching on and off again would lose.
func (s Forwarding) exceptions() (map[string]string, error) {
	all, err := os.ReadDir(s.conf())
	if err != nil {
		return nil, fmt.Errorf("list sysctls: %w", err)
	}
	also := map[string]string{}
	for _, link := range all {
		path := filepath.Join(s.conf(), link.Name(), "forwarding")
		if on, err := sysctlOn(path); err == nil && on {
			also[path] = "1"
		}
	}
	redirects := filepath.Join(s.conf(), "all/accept_redirects")
	if on, err := sysctlOn(redirects); s.Family == 4 && err == nil && !on {
		also[redirects] = "0"
	}
	return also, nil
}

// sysctlSet is a parameter of a namespace's that was set.
type undoSysctl struct {
	NS     nsRef             `json:"where"`
	Path   string            `json:"path"`
	Before string            `json:"was"`
	Set    string            `json:"set"`
	Also   map[string]string `json:"also,omitempty"` // what to set again after Was
}

func (m *undoSysctl) undo(u *undoer) error {
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.ns.Do(func() error {
		now, err := os.ReadFile(m.Path)
		if err != nil {
			return fmt.Errorf("put sysctl back: %w", err)
		}
		if strings.TrimSpace(string(now)) == m.Set {
			if err := os.WriteFile(m.Path, []byte(m.Before), 0); err != nil {
				return fmt.Errorf("put sysctl back: %w", err)
			}
		}
		for path, was := range m.Also {
			err := os.WriteFile(path, []byte(was), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) { // its device is gone
				return fmt.Errorf("put sysctl back: %w", err)
			}
		}
		return nil
	})
}

// Masquerade gives what the network sends past its bridge the host's address
// (a rule in a table of our own).
type Masquerade struct {
	Bridge  string       `json:"bridge"`
	Network netip.Prefix `json:"network"`
}

func (s Masquerade) String() string {
	return fmt.Sprintf("masquerade %s past bridge %s", s.Network, s.Bridge)
}

func (s Masquerade) do(r *run) error { return r.use(s) }

func (s Masquerade) key() string { return "masquerade " + s.Bridge + " " + s.Network.String() }

// rulesOf is the table of one state directory's: what is in it is the business
// of whoever holds the lock on that.
func rulesOf(store *Store, host *namespace, n netip.Prefix) rules.Table {
	name := "cleat"
	if !store.IsDefault() {
		h := fnv.New32a()
		h.Write([]byte(store.Path()))
		name = fmt.Sprintf("cleat-%08x", h.Sum32())
	}
	return rules.Table{NS: host.ns, Name: name, IPv6: n.Addr().Is6()}
}

func (s Masquerade) exists(r *run) (bool, error) {
	return rulesOf(r.store, r.host, s.Network).Has(s.key())
}

func (s Masquerade) create(r *run, note func(Undo) error) error {
	if err := note(Undo{Rule: &undoRule{NS: r.host.ref, Network: s.Network, Comment: s.key()}}); err != nil {
		return err
	}
	return rulesOf(r.store, r.host, s.Network).Masquerade(s.key(), s.Network, s.Bridge)
}

// ruleMade is a rule of ours, known by its comment.
type undoRule struct {
	NS      nsRef        `json:"where"`
	Network netip.Prefix `json:"network"`
	Comment string       `json:"comment"`
}

func (m *undoRule) undo(u *undoer) error {
	s, err := u.namespace(m.NS)
	if errors.Is(err, errNamespaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return rulesOf(u.store, s, m.Network).Remove(m.Comment)
}
