package attach

import (
	"time"

	"cleat/internal/statedir"
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
func (s *Store) reportPath(id string) string { return s.RunPath("kept", id+".json") }

// SaveReport replaces what was said before. It need not outlive the machine's end.
func (s *Store) SaveKeeperReport(id string, r KeeperReport) error {
	return statedir.WriteJSON(s.reportPath(id), r)
}

// Report is nil where no keeper has said anything.
func (s *Store) KeeperReport(id string) (*KeeperReport, error) {
	return statedir.ReadJSON[KeeperReport](s.reportPath(id))
}

// DeleteKeeperReport forgets what was said of an attachment that is no more.
func (s *Store) DeleteKeeperReport(id string) error { return statedir.Remove(s.reportPath(id)) }
