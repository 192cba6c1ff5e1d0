package mptcp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// State records what was done in a network namespace, as far as the kernel can't tell.
type State struct {
	Boot      string               `json:"boot"`    // the kernel's random/boot_id
	Inode     uint64               `json:"inode"`   // netns.NS.ID; 0 if not recorded
	Devices   []string             `json:"devices"` // the requested devices
	Unused    []string             `json:"left"`    // those without a place
	Before    link.MPTCPLimits     `json:"limits_before"`
	Set       link.MPTCPLimits     `json:"limits_set"`
	Endpoints []link.MPTCPEndpoint `json:"endpoints"`
}

// file is the state file of a namespace. It is locked while it is open for a change.
type file struct {
	path  string
	boot  string
	inode uint64
	lock  *os.File
}

// openState opens the state file of ns, which need not exist. It takes the lock only for
// a change.
func openState(ns *netns.NS, dir string, change bool) (*file, error) {
	if dir == "" {
		dir = DefaultDir()
	}
	cookie, err := ns.Cookie()
	if err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	f := &file{path: filepath.Join(dir, fmt.Sprintf("mptcp-%d.json", cookie)), boot: strings.TrimSpace(string(boot))}
	if f.inode, err = ns.ID(); err != nil {
		return nil, err
	}
	if !change {
		return f, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory for state: %w", err)
	}
	if f.lock, err = os.OpenFile(filepath.Join(dir, "mptcp.lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("lock state: %w", err)
	}
	for {
		if err = unix.Flock(int(f.lock.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock state: %w", err), f.close())
	}
	return f, nil
}

// read returns nil if there is no state, or if it is from before the last boot.
func (f *file) read() (*State, error) {
	s, err := statedir.ReadJSON[State](f.path)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	if s == nil || s.Boot != f.boot {
		return nil, nil
	}
	return s, nil
}

// write replaces the file atomically; nil removes it.
func (f *file) write(s *State) error {
	if s == nil {
		if err := statedir.Remove(f.path); err != nil {
			return fmt.Errorf("remove state: %w", err)
		}
		return nil
	}
	s.Boot, s.Inode = f.boot, f.inode
	if err := statedir.WriteJSON(f.path, s); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

func (f *file) close() error {
	if f.lock == nil {
		return nil
	}
	return f.lock.Close()
}

// ReadState returns what was done in ns, or nil.
func ReadState(ns *netns.NS, dir string) (*State, error) {
	f, err := openState(ns, dir, false)
	if err != nil {
		return nil, err
	}
	return f.read()
}
