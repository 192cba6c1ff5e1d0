package attach

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"cleat/internal/statedir"
)

// Attachment is one link of one container as it was requested. Its file exists until it is
// detached.
type Attachment struct {
	Version   int       `json:"version"` // of the file's format
	ID        string    `json:"id"`      // name of the file
	Created   time.Time `json:"made"`
	BootID    string    `json:"boot,omitempty"` // of the boot in which the link was made; "": made by an early version of cleat
	Container Container `json:"container"`
	Spec      Spec      `json:"want"`
}

// attachmentVersion is the current version of the format. Files of later versions are
// rejected.
const attachmentVersion = 1

// NeedsKeeper reports whether a keeper has to watch the attachment, to make it again or to
// renew its lease.
func (a *Attachment) NeedsKeeper() bool { return a.Spec.Keep || a.Spec.DHCP }

// label returns a name for messages, e.g. "eth0 of web".
func (a *Attachment) label() string { return a.Spec.Name + " of " + a.Container.ShortName() }

// label returns a name for messages of the attachment with this id.
func (s *Store) label(id string) string {
	if a := s.lastKnown(id); a != nil {
		return a.label()
	}
	return id
}

// Keep writes the attachment's file. It is a step of every attach, with or without Spec.Keep.
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
		return fmt.Errorf("read attachment: %w", err)
	}
	if err := r.record(Undo{File: &undoFile{Path: s.Path, Temp: statedir.TempPath(s.Path), Text: text, Before: before}}); err != nil {
		return err
	}
	return statedir.WriteFile(s.Path, text)
}

// undoFile restores a file that was replaced by statedir.WriteFile.
type undoFile struct {
	Path   string `json:"path"`
	Temp   string `json:"temp"`
	Text   []byte `json:"text"`             // the new content
	Before []byte `json:"before,omitempty"` // the old content; nil: the file did not exist

	// Detached means that the file is removed, whatever it contains.
	Detached bool `json:"-"`
}

func (m *undoFile) undo(*undoer) error {
	if err := statedir.Remove(m.Temp); err != nil {
		return err
	}
	if m.Detached {
		return statedir.Remove(m.Path)
	}
	now, err := os.ReadFile(m.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !bytes.Equal(now, m.Text):
		return nil
	case err != nil:
		return fmt.Errorf("restore file: %w", err)
	case m.Before == nil:
		return statedir.Remove(m.Path)
	}
	return statedir.WriteFile(m.Path, m.Before)
}
