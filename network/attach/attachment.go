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

// Attachment is one link of one container as it is wanted. It is kept as a file
// until it is detached.
type Attachment struct {
	Version   int       `json:"version"` // of this form: attachmentVersion
	ID        string    `json:"id"`      // the file's name
	Created   time.Time `json:"made"`
	BootID    string    `json:"boot,omitempty"` // boot id of the kernel under which its link was made; "": of an earlier cleat
	Container Container `json:"container"`
	Spec      Spec      `json:"want"`
}

// attachmentVersion is the form of Attachment; a file of a later one is refused.
const attachmentVersion = 1

// NeedsKeeper tells whether an attachment is for a keeper: to be made again, which Spec.Keep
// says, or with a lease to be extended.
func (a *Attachment) NeedsKeeper() bool { return a.Spec.Keep || a.Spec.DHCP }

// called is what people call an attachment.
func (a *Attachment) label() string { return a.Spec.Name + " of " + a.Container.ShortName() }

// called is the same of an id, as far as is known.
func (s *Store) label(id string) string {
	if a := s.lastKnown(id); a != nil {
		return a.label()
	}
	return id
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
	if err := r.record(Undo{File: &undoFile{Path: s.Path, Temp: statedir.TempPath(s.Path), Text: text, Before: before}}); err != nil {
		return err
	}
	return statedir.WriteFile(s.Path, text)
}

// fileWritten is a file that was replaced as a whole by way of another.
type undoFile struct {
	Path   string `json:"path"`
	Temp   string `json:"temp"`             // what is written first
	Text   []byte `json:"text"`             // what is in it then
	Before []byte `json:"before,omitempty"` // what was in it; nil: it was not there

	// Detached says that nothing is wanted any more, whatever the file says now.
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
