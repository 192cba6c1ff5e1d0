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

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Forwarding has the host pass packets of one family on.
type Forwarding struct {
	Family int `json:"family"` // 4 or 6
}

func (s Forwarding) String() string  { return "have the host forward IPv" + fmt.Sprint(s.Family) }
func (s Forwarding) do(r *run) error { return r.share(s) }
func (s Forwarding) key() string     { return fmt.Sprintf("forwarding %d", s.Family) }

func (s Forwarding) conf() string { return fmt.Sprintf("/proc/sys/net/ipv%d/conf", s.Family) }
func (s Forwarding) path() string { return filepath.Join(s.conf(), "all/forwarding") }

func (s Forwarding) there(r *run) (on bool, err error) {
	err = r.host.ns.Do(func() error {
		on, err = isOne(s.path())
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

// make switches it on where it is off. The kernel then sets it for every device,
// and switches redirects, so what was different is noted.
func (s Forwarding) make(r *run, note func(Undo) error) error {
	return r.host.ns.Do(func() error {
		on, err := isOne(s.path())
		if err != nil || on {
			return err
		}
		m := sysctlSet{Where: r.host.place, Path: s.path(), Was: "0", Set: "1"}
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

// sysctlSet is a parameter of a namespace's that was set.
type sysctlSet struct {
	Where place             `json:"where"`
	Path  string            `json:"path"`
	Was   string            `json:"was"`
	Set   string            `json:"set"`
	Also  map[string]string `json:"also,omitempty"` // what to set again after Was
}

func (m *sysctlSet) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
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
			if err := os.WriteFile(m.Path, []byte(m.Was), 0); err != nil {
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

func (s Masquerade) do(r *run) error { return r.share(s) }
func (s Masquerade) key() string     { return "masquerade " + s.Bridge + " " + s.Network.String() }

// natChain is the chain in the table.
const natChain = "postrouting"

// natTable is the table of one state directory's: what is in it is the business
// of whoever holds the lock on that.
func natTable(store *Store, n netip.Prefix) *nftables.Table {
	name := "cleat"
	if store.state != defaultDir {
		h := fnv.New32a()
		h.Write([]byte(store.state))
		name = fmt.Sprintf("cleat-%08x", h.Sum32())
	}
	family := nftables.TableFamilyIPv4
	if n.Addr().Is6() {
		family = nftables.TableFamilyIPv6
	}
	return &nftables.Table{Name: name, Family: family}
}

func (s Masquerade) there(r *run) (bool, error) {
	var found *nftables.Rule
	err := withNFT(r.host, func(c *nftables.Conn) error {
		var err error
		found, _, err = findRule(c, natTable(r.store, s.Network), s.key())
		return err
	})
	return found != nil, err
}

// make adds table, chain and rule in one transaction; the first two may be there.
func (s Masquerade) make(r *run, note func(Undo) error) error {
	t := natTable(r.store, s.Network)
	if err := note(Undo{Rule: &ruleMade{Where: r.host.place, Network: s.Network, Comment: s.key()}}); err != nil {
		return err
	}
	return withNFT(r.host, func(c *nftables.Conn) error {
		c.AddTable(t)
		chain := c.AddChain(&nftables.Chain{Name: natChain, Table: t, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: s.rule(), UserData: userdata.AppendString(nil, userdata.TypeComment, s.key())})
		return c.Flush()
	})
}

// rule is: ip saddr NETWORK oifname != BRIDGE masquerade.
func (s Masquerade) rule() []expr.Any {
	offset, size := uint32(12), uint32(4) // struct iphdr: saddr
	if s.Network.Addr().Is6() {
		offset, size = 8, 16 // struct ipv6hdr: saddr
	}
	net := s.Network.Masked()
	mask := make([]byte, size)
	for i := range net.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, s.Bridge)
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: net.Addr().AsSlice()},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name},
		&expr.Masq{},
	}
}

// withNFT runs f with a socket to the rules of a side's namespace.
func withNFT(s *side, f func(*nftables.Conn) error) error {
	return s.ns.Do(func() error {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return fmt.Errorf("open nftables in %s: %w", s.ns, err)
		}
		defer c.CloseLasting()
		if err := f(c); err != nil {
			return fmt.Errorf("nftables in %s: %w", s.ns, err)
		}
		return nil
	})
}

// findRule is the rule with this comment, nil if there is none, and how many
// rules there are.
func findRule(c *nftables.Conn, t *nftables.Table, comment string) (*nftables.Rule, int, error) {
	rules, err := c.GetRules(t, &nftables.Chain{Name: natChain, Table: t})
	if errors.Is(err, unix.ENOENT) {
		return nil, 0, nil
	}
	for _, rule := range rules {
		if text, ok := userdata.GetString(rule.UserData, userdata.TypeComment); ok && text == comment {
			return rule, len(rules), err
		}
	}
	return nil, len(rules), err
}

// ruleMade is a rule of ours, known by its comment.
type ruleMade struct {
	Where   place        `json:"where"`
	Network netip.Prefix `json:"network"`
	Comment string       `json:"comment"`
}

// undo removes the rule, and the table with the last one.
func (m *ruleMade) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil
	}
	if err != nil {
		return err
	}
	t := natTable(u.store, m.Network)
	return withNFT(s, func(c *nftables.Conn) error {
		rule, rules, err := findRule(c, t, m.Comment)
		if err != nil || rule == nil {
			return err
		}
		alone, err := onlyChain(c, t)
		if err != nil {
			return err
		}
		if rules == 1 && alone {
			c.DelTable(t)
		} else if err := c.DelRule(rule); err != nil {
			return err
		}
		return c.Flush()
	})
}

// onlyChain tells whether nobody has put a chain of his own into our table.
func onlyChain(c *nftables.Conn, t *nftables.Table) (bool, error) {
	all, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return false, fmt.Errorf("list chains: %w", err)
	}
	return !slices.ContainsFunc(all, func(other *nftables.Chain) bool {
		return other.Table.Name == t.Name && other.Name != natChain
	}), nil
}
