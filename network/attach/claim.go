package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"cleat/internal/statedir"
	"cleat/link"
)

// claims gives the addresses to this attachment alone.
func (p *planner) claims() error {
	if p.spec.Parent == "" {
		return nil
	}
	network := p.spec.Parent
	if p.spec.VLAN != 0 {
		network += "." + strconv.Itoa(p.spec.VLAN)
	}
	for _, ip := range p.spec.Addresses {
		if err := p.checkNotHosts(ip.Addr()); err != nil {
			return err
		}
		p.add(ClaimAddress{Network: network, Addr: ip.Addr().String()})
	}
	if mac := p.spec.MAC; mac != (link.MAC{}) && slices.Contains(ethernetKinds, p.spec.Kind) {
		p.add(ClaimAddress{Network: network, Addr: mac.String(), Ethernet: true})
	}
	return nil
}

// ClaimAddress marks an address as given out on one network of the host's, so
// that no other container gets it.
type ClaimAddress struct {
	Network  string `json:"network"` // the bridge or parent on the host
	Addr     string `json:"address"`
	Ethernet bool   `json:"ethernet,omitempty"` // it is an Ethernet address that a person chose
}

func (s ClaimAddress) String() string {
	return fmt.Sprintf("claim %s %s on %s", s.what(), s.Addr, s.Network)
}

func (s ClaimAddress) what() string {
	if s.Ethernet {
		return EthernetAddress
	}
	return "address"
}

// claim is the mark of who has an address on a network of the host's: a link to his id.
func (r *run) claim(network, addr string) string {
	return r.store.claimFile(r.host.ref.key()+" "+network, addr)
}

func (s ClaimAddress) check(r *run) error {
	holder, err := os.Readlink(r.claim(s.Network, s.Addr))
	if err != nil || holder == r.att.ID || !r.store.inUse(holder, r.host) {
		return nil
	}
	return r.store.taken(s.what(), s.Addr, holder)
}

func (s ClaimAddress) do(r *run) error {
	path := r.claim(s.Network, s.Addr)
	for range 2 {
		holder, err := os.Readlink(path)
		if err == nil && holder != r.att.ID {
			if !r.store.retireIfGone(r.ctx, holder, r.host, r.testHook) {
				return r.store.taken(s.what(), s.Addr, holder)
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
	return &TakenError{Resource: s.what(), Name: s.Addr}
}

// claimMade is a symbolic link of ours that leads nowhere: making one takes the
// name and says who, in one system call.
type undoClaim struct {
	Path string `json:"path"`
	ID   string `json:"id"` // who
}

func (m *undoClaim) undo(*undoer) error {
	id, err := os.Readlink(m.Path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && id != m.ID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("give up claim: %w", err)
	}
	return statedir.Remove(m.Path)
}
