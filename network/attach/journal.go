package attach

import (
	"encoding/json"
	"errors"
	"fmt"

	"cleat/network/journal"
)

// entry is one record of a journal: one of the fields is set.
type entry struct {
	Begin *header  `json:"begin,omitempty"` // the first
	Undo  *Undo    `json:"undo,omitempty"`
	Made  *outcome `json:"made,omitempty"` // after the last step of an attach
}

// header describes the operation: the attachment, and the two namespaces.
type header struct {
	Attachment *Attachment `json:"attachment"`
	Host       nsRef       `json:"host"`
	Container  nsRef       `json:"container"`
}

// outcome is the result of a complete attach.
type outcome struct {
	Index int      `json:"index"` // of the link in the container
	Peer  string   `json:"peer,omitempty"`
	Steps []string `json:"steps"`
	Notes []string `json:"notes,omitempty"`
}

type records struct {
	header
	undos   []Undo
	outcome *outcome // nil: the attach is not complete
}

// parse decodes the records of a journal. On error, which wraps journal.ErrDamaged, it returns
// only the header.
func parse(lines []json.RawMessage) (records, error) {
	var all records
	for i, line := range lines {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return records{header: all.header}, fmt.Errorf("%w: record %d: %w", journal.ErrDamaged, i+1, err)
		}
		switch {
		case e.Begin != nil:
			all.header = *e.Begin
		case e.Undo != nil:
			all.undos = append(all.undos, *e.Undo)
		case e.Made != nil:
			all.outcome = e.Made
		}
	}
	return all, nil
}

// readJournal reads a journal. If it is damaged, readJournal returns the records that it can
// read, beside an error.
func readJournal(path string) (records, error) {
	lines, err := journal.Read(path)
	all, parseErr := parse(lines)
	return all, errors.Join(err, parseErr)
}
