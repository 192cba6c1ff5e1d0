package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrOwned says that a journal's owner is alive.
var ErrOwned = errors.New("the journal has a living owner")

// ErrDamaged says that somebody wrote into a journal what is no record.
var ErrDamaged = errors.New("it is damaged")

// Journal is a journal that this process owns. It is for one goroutine.
type Journal struct {
	file *os.File
	path string
}

// Create makes a new, empty journal and owns it. One that is there already is
// fs.ErrExist. Between its creation and its lock somebody else could take it for
// one that was left: callers keep others from looking meanwhile.
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

// Open takes over a journal that was left, and cuts off a record that was only
// written in part. ErrOwned: somebody is at work on it; fs.ErrNotExist: it is not
// there, or no longer.
func Open(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &Journal{file: f, path: path}
	if err := j.own(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	if err := j.cutTorn(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

// own locks the file, and sees whether it is still the one by that name: its
// owner may have renamed or removed it before it was locked.
func (j *Journal) own() error {
	err := unix.Flock(int(j.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrOwned
	}
	if err != nil {
		return fmt.Errorf("lock journal %s: %w", j.path, err)
	}
	mine, err := j.file.Stat()
	if err != nil {
		return fmt.Errorf("look at journal: %w", err)
	}
	there, err := os.Stat(j.path)
	if err != nil {
		return fmt.Errorf("look at journal: %w", err)
	}
	if !os.SameFile(mine, there) {
		return fmt.Errorf("open journal %s: %w", j.path, fs.ErrNotExist)
	}
	return nil
}

func (j *Journal) cutTorn() error {
	b, err := os.ReadFile(j.path)
	if err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	whole := bytes.LastIndexByte(b, '\n') + 1
	if whole == len(b) {
		return nil
	}
	if err := j.file.Truncate(int64(whole)); err != nil {
		return fmt.Errorf("cut torn record off journal: %w", err)
	}
	return nil
}

// Path is the journal's name now.
func (j *Journal) Path() string { return j.path }

// Append writes one record, which must be something that JSON can hold. When it
// returns nil the record outlives this process.
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

// Records are the complete records, first to last.
func (j *Journal) Records() ([]json.RawMessage, error) { return Read(j.path) }

// Read is the complete records of a journal, whoever owns it, first to last. With
// ErrDamaged they are those that can be read.
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

// Rename gives the journal another name, replacing what has it, and keeps it
// owned.
func (j *Journal) Rename(path string) error {
	if err := os.Rename(j.path, path); err != nil {
		return fmt.Errorf("rename journal: %w", err)
	}
	j.path = path
	return nil
}

// Remove ends a journal whose records are all undone.
func (j *Journal) Remove() error {
	if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove journal: %w", err)
	}
	return j.Close()
}

// Close lets the journal go as it is: one that is not renamed or removed counts
// as left from then on. Closing twice is harmless.
func (j *Journal) Close() error {
	if err := j.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}
