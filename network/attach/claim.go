package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"cleat/internal/statedir"
	"cleat/link"
)

// claims plans to claim the attachment's addresses on the parent's network. It rejects an
// address that the host itself has, unless the device that has it may be the one that moves.
func (p *planner) claims() error {
	if p.spec.Parent == "" {
		return nil
	}
	network := p.spec.Parent
	if p.spec.VLAN != 0 {
		network += "." + strconv.Itoa(p.spec.VLAN)
	}
	moves := p.spec.Kind == "phys" || p.spec.Kind == "ipoib" // the device leaves the host
	for _, ip := range p.spec.Addresses {
		a := ip.Addr()
		if !moves && !a.IsLinkLocalUnicast() && p.host.isLocal(a) {
			return &TakenError{Resource: "address", Name: a.String(), Owner: "the host itself"}
		}
		p.add(ClaimAddress{Network: network, Addr: a.String()})
	}
	if mac := p.spec.MAC; mac != (link.MAC{}) && slices.Contains(ethernetKinds, p.spec.Kind) {
		p.add(ClaimAddress{Network: network, Addr: mac.String(), Ethernet: true})
	}
	return nil
}

// ClaimAddress reserves an address on a network of the host, so that no other attachment
// gets it.
type ClaimAddress struct {
	Network  string `json:"network"` // the bridge or parent on the host, and ".VLAN" if it is in a VLAN
	Addr     string `json:"address"`
	Ethernet bool   `json:"ethernet,omitempty"` // Addr is an Ethernet address
}

func (s ClaimAddress) String() string {
	return fmt.Sprintf("claim %s %s on %s", s.resource(), s.Addr, s.Network)
}

func (s ClaimAddress) resource() string {
	if s.Ethernet {
		return EthernetAddress
	}
	return "address"
}

// claimPath returns the path of a claim. A claim is a symbolic link whose target is the id of
// the attachment that has the address. Creating it is one system call, which fails if the
// claim exists.
func (r *run) claimPath(network, addr string) string {
	return r.store.RunPath("claims", fileName(r.host.ref.key()+" "+network)+"="+addr)
}

func (s *Store) claimsOf(id string) ([]string, error) {
	paths, err := filepath.Glob(s.RunPath("claims", "*"))
	return slices.DeleteFunc(paths, func(path string) bool {
		owner, err := os.Readlink(path)
		return err != nil || owner != id
	}), err
}

func (s ClaimAddress) check(r *run) error {
	owner, err := os.Readlink(r.claimPath(s.Network, s.Addr))
	if err != nil || owner == r.att.ID || !r.inUse(owner) {
		return nil
	}
	return r.store.taken(s.resource(), s.Addr, owner)
}

// do takes over a claim whose owner is gone. It tries twice, since others may claim the
// address meanwhile.
func (s ClaimAddress) do(r *run) error {
	path := r.claimPath(s.Network, s.Addr)
	for range 2 {
		owner, err := os.Readlink(path)
		if err == nil && owner != r.att.ID {
			if !r.retireIfGone(r.ctx, owner) {
				return r.store.taken(s.resource(), s.Addr, owner)
			}
			continue
		}
		if err := r.record(Undo{Claim: &undoClaim{Path: path, ID: r.att.ID}}); err != nil {
			return err
		}
		if err := os.Symlink(r.att.ID, path); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return &TakenError{Resource: s.resource(), Name: s.Addr}
}

type undoClaim struct {
	Path string `json:"path"`
	ID   string `json:"id"`
}

func (m *undoClaim) undo(*undoer) error {
	owner, err := os.Readlink(m.Path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && owner != m.ID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove claim: %w", err)
	}
	return statedir.Remove(m.Path)
}
