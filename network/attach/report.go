package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Report is what a keeper last did about an attachment.
type KeeperReport struct {
	Action       string    `json:"did,omitempty"` // "": nothing yet
	ActionTime   time.Time `json:"at,omitzero"`   // when it did
	Error        string    `json:"error,omitempty"`
	FailingSince time.Time `json:"since,omitzero"`     // when what can't be done failed first
	Failures     int       `json:"failures,omitempty"` // times, since then
	Next         time.Time `json:"next,omitzero"`      // when it is tried again; zero: when something happens
}

// report is the file in which that is kept.
func (s *Store) report(id string) string { return filepath.Join(s.run, "kept", id+".json") }

// SaveReport replaces what was said before. It need not outlive the machine's end.
func (s *Store) SaveKeeperReport(id string, r KeeperReport) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	path := s.report(id)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("keep report: %w", err)
	}
	return replaceFile(path, tempOf(path), append(text, '\n'))
}

// Report is nil where no keeper has said anything.
func (s *Store) KeeperReport(id string) (*KeeperReport, error) {
	text, err := os.ReadFile(s.report(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	r := new(KeeperReport)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read report %s: %w", s.report(id), err)
	}
	return r, nil
}

// DeleteKeeperReport forgets what was said of an attachment that is no more.
func (s *Store) DeleteKeeperReport(id string) error { return removeFile(s.report(id)) }
