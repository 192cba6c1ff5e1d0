package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cleat/internal/statedir"

	"golang.org/x/sys/unix"
)

// ErrOwned means that the owner of a journal is alive.
var ErrOwned = errors.New("another process owns the journal")

// ErrDamaged means that a journal has a line that is not a record.
var ErrDamaged = errors.New("the journal is damaged")

// Journal is a journal that this process owns. It is not safe for concurrent use.
type Journal struct {
	file *os.File
	path string
}

// Create creates an empty journal and owns it. It returns fs.ErrExist if the file exists. Between
// creation and lock another process could open the journal as one without an owner, so callers must
// exclude that.
func Create(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create journal: %w", err)
	}
	j := &Journal{file: f, path: path}
	if err := j.own(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

// Open takes over a journal that has no owner, and cuts off a record that was only written in part.
// It returns ErrOwned if another process owns the journal, and fs.ErrNotExist if the file does not
// exist, or has been renamed or removed meanwhile.
func Open(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &Journal{file: f, path: path}
	if err := j.own(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	if err := j.cutPartial(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

// own locks the file, and checks that it still has its name: the owner may have renamed or removed
// it before it was locked.
func (j *Journal) own() error {
	err := unix.Flock(int(j.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrOwned
	}
	if err != nil {
		return fmt.Errorf("lock journal %s: %w", j.path, err)
	}
	locked, err := j.file.Stat()
	if err != nil {
		return fmt.Errorf("check journal: %w", err)
	}
	named, err := os.Stat(j.path)
	if err != nil {
		return fmt.Errorf("check journal: %w", err)
	}
	if !os.SameFile(locked, named) {
		return fmt.Errorf("open journal %s: %w", j.path, fs.ErrNotExist)
	}
	return nil
}

func (j *Journal) cutPartial() error {
	b, err := os.ReadFile(j.path)
	if err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	whole := bytes.LastIndexByte(b, '\n') + 1
	if whole == len(b) {
		return nil
	}
	if err := j.file.Truncate(int64(whole)); err != nil {
		return fmt.Errorf("cut partial record off journal: %w", err)
	}
	return nil
}

// Path returns the journal's current path.
func (j *Journal) Path() string { return j.path }

// Append writes a record as JSON. When it returns nil, the record outlives this process.
func (j *Journal) Append(record any) error {
	b, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode record of journal %s: %w", j.path, err)
	}
	if _, err := j.file.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

// Read returns the complete records of a journal in order, whoever owns it. With ErrDamaged it
// returns those that are valid.
func Read(path string) ([]json.RawMessage, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	var all []json.RawMessage
	n := 0
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		if n++; !json.Valid(line) {
			err = fmt.Errorf("read journal %s: %w: line %d is not JSON", path, ErrDamaged, n)
			continue
		}
		all = append(all, bytes.TrimSuffix(line, []byte("\n")))
	}
	return all, err
}

// Clear removes all records.
func (j *Journal) Clear() error {
	if err := j.file.Truncate(0); err != nil {
		return fmt.Errorf("clear journal: %w", err)
	}
	return nil
}

// Rename renames the journal, which stays owned. It replaces a file of that name.
func (j *Journal) Rename(path string) error {
	if err := os.Rename(j.path, path); err != nil {
		return fmt.Errorf("rename journal: %w", err)
	}
	j.path = path
	return nil
}

// Remove removes and closes a journal whose records have all been undone.
func (j *Journal) Remove() error {
	if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove journal: %w", err)
	}
	return j.Close()
}

// Close gives up the ownership. A journal that was neither renamed nor removed can then be opened by
// others. Closing twice is harmless.
func (j *Journal) Close() error {
	if err := j.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}

// WaitForOwner waits until no process owns the journal at path. It returns false if the journal
// exists and has no owner: its operation died.
func WaitForOwner(ctx context.Context, path string) (waited bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("wait for the owner of a journal: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		waited = true
		if err := statedir.WaitLock(ctx, f); err != nil {
			return true, err
		}
	}
	ended := waited || !hasName(f, path) // its owner may just have removed or renamed it
	return ended, f.Close()
}

// hasName reports whether a path leads to an open file.
func hasName(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}
