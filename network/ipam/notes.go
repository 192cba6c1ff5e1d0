package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxNotes is the size of the file of notes in bytes: about 1,500 notes of 40 bytes. A full file
// is compacted to at most half of it.
const maxNotes = 64 << 10

// notesPath returns the path of the notes: one line "OWNER ADDRESS" each, the newest last.
func (p *Pool) notesPath() string { return filepath.Join(p.Dir, ".remembered") }

// Remember notes an owner's address for Remembered, usually before its release. The notes take
// at most 64 KiB, whatever the number of owners: those of the owners that were remembered
// longest ago are dropped.
func (p *Pool) Remember(addr netip.Addr, owner Owner) error {
	if err := p.remember(addr, owner); err != nil {
		return fmt.Errorf("remember address %s of %q: %w", addr, string(owner), err)
	}
	return nil
}

func (p *Pool) remember(addr netip.Addr, owner Owner) error {
	if err := owner.check(); err != nil {
		return err
	}
	if _, reserved := owner.Reserved(); reserved {
		return errors.New("it is a reservation")
	}
	if p.subnetOf(addr) == nil {
		return errors.New("the pool has no subnet of it")
	}
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	line := fmt.Sprintf("%s %s\n", owner, addr)
	if info, err := os.Stat(p.notesPath()); err == nil && info.Size()+int64(len(line)) > maxNotes {
		if err := p.compactNotes(); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(p.notesPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// compactNotes replaces the file of notes. It is not synced, because a lost file costs no
// more than the notes.
func (p *Pool) compactNotes() error {
	text, err := os.ReadFile(p.notesPath())
	if err != nil {
		return err
	}
	temp := p.notesPath() + ".new"
	if err := os.WriteFile(temp, p.newestNotes(string(text)), 0o644); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return os.Rename(temp, p.notesPath())
}

// newestNotes returns the newest note of each owner and subnet, in order, without the oldest of
// them if they take more than half of maxNotes.
func (p *Pool) newestNotes(text string) []byte {
	type key struct {
		owner  Owner
		subnet *Subnet
	}
	seen := map[key]bool{}
	var kept []string
	size := 0
	for _, line := range slices.Backward(slices.Collect(strings.Lines(text))) {
		owner, addr, ok := parseNote(line)
		k := key{owner, p.subnetOf(addr)}
		if !ok || k.subnet == nil || seen[k] {
			continue
		}
		if size += len(line); size > maxNotes/2 {
			break
		}
		seen[k] = true
		kept = append(kept, line)
	}
	slices.Reverse(kept)
	return []byte(strings.Join(kept, ""))
}

// parseNote returns the owner and the address of a line. It reports whether the line is a note:
// a process that is killed may write a part of one.
func parseNote(line string) (Owner, netip.Addr, bool) {
	name, rest, _ := strings.Cut(line, " ")
	text, complete := strings.CutSuffix(rest, "\n")
	addr, ok := parseName(text)
	return Owner(name), addr, ok && complete && Owner(name).valid()
}

// Remembered returns the address that was last remembered of an owner in the subnet with this
// prefix, to be preferred by Allocate. It returns the zero Addr if there is none, or if the notes
// can't be read.
func (p *Pool) Remembered(subnet netip.Prefix, owner Owner) netip.Addr {
	text, err := os.ReadFile(p.notesPath())
	if err != nil {
		return netip.Addr{}
	}
	var last netip.Addr
	start := string(owner) + " "
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, start) {
			continue
		}
		if _, a, ok := parseNote(line); ok && subnet.Contains(a) {
			last = a
		}
	}
	return last
}
