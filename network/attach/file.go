package attach

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cleat/internal/statedir"
)

// claimMade is a symbolic link of ours that leads nowhere: making one takes the
// name and says who, in one system call.
type claimMade struct {
	Path string `json:"path"`
	ID   string `json:"id"` // who
}

func (m *claimMade) undo(*undoer) error {
	id, err := os.Readlink(m.Path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && id != m.ID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("give up claim: %w", err)
	}
	return statedir.Remove(m.Path)
}

// fileWritten is a file that was replaced as a whole by way of another.
type fileWritten struct {
	Path   string `json:"path"`
	Temp   string `json:"temp"`             // what is written first
	Text   []byte `json:"text"`             // what is in it then
	Before []byte `json:"before,omitempty"` // what was in it; nil: it was not there

	// Detached says that nothing is wanted any more, whatever the file says now.
	Detached bool `json:"-"`
}

func (m *fileWritten) undo(*undoer) error {
	if err := statedir.Remove(m.Temp); err != nil {
		return err
	}
	if m.Detached {
		return statedir.Remove(m.Path)
	}
	now, err := os.ReadFile(m.Path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Equal(now, m.Text) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("put file back: %w", err)
	}
	if m.Before == nil {
		return statedir.Remove(m.Path)
	}
	return statedir.WriteFile(m.Path, m.Before)
}

// Keep writes down what is wanted.
type Keep struct {
	Path string `json:"path"`
}

func (s Keep) String() string { return "write " + s.Path }

func (s Keep) do(r *run) error {
	text, err := statedir.EncodeJSON(r.att)
	if err != nil {
		return fmt.Errorf("encode attachment: %w", err)
	}
	before, err := os.ReadFile(s.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read what was wanted before: %w", err)
	}
	if err := r.record(Undo{File: &fileWritten{Path: s.Path, Temp: statedir.TempPath(s.Path), Text: text, Before: before}}); err != nil {
		return err
	}
	return statedir.WriteFile(s.Path, text)
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
	return r.store.claim(r.host.place.name()+" "+network, addr)
}

func (s ClaimAddress) foretell(r *run) error {
	holder, err := os.Readlink(r.claim(s.Network, s.Addr))
	if err != nil || holder == r.att.ID || !r.store.holds(holder, r.host) {
		return nil
	}
	return r.store.taken(s.what(), s.Addr, holder)
}

func (s ClaimAddress) do(r *run) error {
	path := r.claim(s.Network, s.Addr)
	for range 2 {
		holder, err := os.Readlink(path)
		if err == nil && holder != r.att.ID {
			if !r.store.tidyGone(r.ctx, holder, r.host, r.trial) {
				return r.store.taken(s.what(), s.Addr, holder)
			}
			continue
		}
		if err := r.record(Undo{Claim: &claimMade{Path: path, ID: r.att.ID}}); err != nil {
			return err
		}
		if err := os.Symlink(r.att.ID, path); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return &TakenError{Resource: s.what(), Name: s.Addr}
}
