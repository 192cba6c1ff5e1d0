package attach

import (
	"time"

	"cleat/internal/statedir"
)

// KeeperReport is what a keeper did last about an attachment. It is lost when the machine
// restarts.
type KeeperReport struct {
	Action       string    `json:"did,omitempty"` // "": none yet
	ActionTime   time.Time `json:"at,omitzero"`
	Error        string    `json:"error,omitempty"`
	FailingSince time.Time `json:"since,omitzero"`
	Failures     int       `json:"failures,omitempty"` // since FailingSince
	Next         time.Time `json:"next,omitzero"`      // time of the next attempt; zero: when something changes
}

func (s *Store) reportPath(id string) string { return s.RunPath("kept", id+".json") }

// SaveKeeperReport replaces the report about an attachment.
func (s *Store) SaveKeeperReport(id string, r KeeperReport) error {
	return statedir.WriteJSON(s.reportPath(id), r)
}

// KeeperReport returns the report about an attachment; nil if there is none.
func (s *Store) KeeperReport(id string) (*KeeperReport, error) {
	return statedir.ReadJSON[KeeperReport](s.reportPath(id))
}

// DeleteKeeperReport removes the report about an attachment if there is one.
func (s *Store) DeleteKeeperReport(id string) error { return statedir.Remove(s.reportPath(id)) }
