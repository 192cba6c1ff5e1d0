package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode"
)

// Owner is the owner of an address: the id of an endpoint, or a Reservation. An id has 1 to 200
// printable ASCII characters other than space and "/". The zero Owner means that the address is
// free.
type Owner string

// reserved is the beginning of reservations. No id has a slash.
const reserved = "reserved/"

// Reservation returns the owner of an address that no endpoint gets. The note has at most 200
// bytes of printable text in one line, and may be empty.
func Reservation(note string) Owner { return Owner(reserved + note) }

// Reserved reports whether o is a Reservation, and returns its note.
func (o Owner) Reserved() (note string, ok bool) { return strings.CutPrefix(string(o), reserved) }

// maxOwner keeps an owner shorter than a file name may be.
const maxOwner = 200

func (o Owner) valid() bool {
	printable := func(r rune) bool { return r > ' ' && r <= '~' && r != '/' }
	text, isNote := o.Reserved()
	if isNote {
		printable = func(r rune) bool { return unicode.IsPrint(r) && r != unicode.ReplacementChar }
	}
	bad := func(r rune) bool { return !printable(r) }
	return (isNote || text != "") && len(text) <= maxOwner && !strings.ContainsFunc(text, bad)
}

func (o Owner) check() error {
	if !o.valid() {
		return fmt.Errorf("owner %q is not valid", string(o))
	}
	return nil
}

// Entry is one taken address.
type Entry struct {
	Addr  netip.Addr
	Owner Owner
}

// path returns the path of an address's entry: a symbolic link whose target is the owner.
// Creating it is one system call, which fails if the entry exists.
func (p *Pool) path(a netip.Addr) string {
	return filepath.Join(p.Dir, a.WithZone("").String())
}

// parseName returns the address whose entry has this name.
func parseName(name string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(name)
	return a, err == nil && a.Zone() == "" && a.String() == name
}

// names returns the names of all files in the directory whose names don't begin with a dot.
func (p *Pool) names() ([]string, error) {
	dir, err := os.Open(p.Dir)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name[0] == '.' }), nil
}

// Owner returns the owner of an address; "" if it is free. The error is a *ForeignError if the
// address's entry was not made by this package.
func (p *Pool) Owner(addr netip.Addr) (Owner, error) {
	target, err := os.Readlink(p.path(addr))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case errors.Is(err, syscall.EINVAL), err == nil && !Owner(target).valid():
		return "", &ForeignError{Dir: p.Dir, Names: []string{addr.String()}}
	case err != nil:
		return "", fmt.Errorf("read owner of address: %w", err)
	}
	return Owner(target), nil
}

// Entries returns all taken addresses, sorted, also those outside all subnets. If the directory
// has other files, Entries returns a *ForeignError beside the entries. Entries that are made or
// removed during the call may be missing.
func (p *Pool) Entries() ([]Entry, error) {
	names, err := p.names()
	if err != nil {
		return nil, err
	}
	var all []Entry
	var foreign []string
	for _, name := range names {
		addr, ok := parseName(name)
		if !ok {
			foreign = append(foreign, name)
			continue
		}
		owner, err := p.Owner(addr)
		var notOurs *ForeignError
		switch {
		case errors.As(err, &notOurs):
			foreign = append(foreign, name)
		case err != nil:
			return nil, err
		case owner != "":
			all = append(all, Entry{addr, owner})
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return a.Addr.Compare(b.Addr) })
	if len(foreign) > 0 {
		slices.Sort(foreign)
		return all, &ForeignError{Dir: p.Dir, Names: foreign}
	}
	return all, nil
}
