package attach

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"cleat/network/rules"
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

// rulesOf is the table of one state directory's: what is in it is the business
// of whoever holds the lock on that.
func rulesOf(store *Store, host *side, n netip.Prefix) rules.Table {
	name := "cleat"
	if !store.IsDefault() {
		h := fnv.New32a()
		h.Write([]byte(store.Path()))
		name = fmt.Sprintf("cleat-%08x", h.Sum32())
	}
	return rules.Table{NS: host.ns, Name: name, IPv6: n.Addr().Is6()}
}

func (s Masquerade) there(r *run) (bool, error) {
	return rulesOf(r.store, r.host, s.Network).Has(s.key())
}

func (s Masquerade) make(r *run, note func(Undo) error) error {
	if err := note(Undo{Rule: &ruleMade{Where: r.host.place, Network: s.Network, Comment: s.key()}}); err != nil {
		return err
	}
	return rulesOf(r.store, r.host, s.Network).Masquerade(s.key(), s.Network, s.Bridge)
}

// ruleMade is a rule of ours, known by its comment.
type ruleMade struct {
	Where   place        `json:"where"`
	Network netip.Prefix `json:"network"`
	Comment string       `json:"comment"`
}

func (m *ruleMade) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil
	}
	if err != nil {
		return err
	}
	return rulesOf(u.store, s, m.Network).Remove(m.Comment)
}
