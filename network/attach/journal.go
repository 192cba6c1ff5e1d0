package attach

import (
	"encoding/json"
	"fmt"
)

// entry is one record of a journal.
type entry struct {
	Begin *header  `json:"begin,omitempty"` // the first
	Undo  *Undo    `json:"undo,omitempty"`
	Made  *outcome `json:"made,omitempty"` // the last, of an attachment that is complete
}

// begin says what the operation is.
type header struct {
	Attachment *Attachment `json:"attachment"`
	Host       nsRef       `json:"host"`
	Container  nsRef       `json:"container"`
}

// made is what came of it.
type outcome struct {
	Index int      `json:"index"` // of the link in the container
	Peer  string   `json:"peer,omitempty"`
	Steps []string `json:"steps"`
	Notes []string `json:"notes,omitempty"`
}

// parse takes a journal's records apart.
func parseJournal(records []json.RawMessage) (first header, undos []Undo, last *outcome, err error) {
	for i, raw := range records {
		var e entry
		if err := json.Unmarshal(raw, &e); err != nil {
			return first, nil, nil, fmt.Errorf("decode record %d: %w", i+1, err)
		}
		switch {
		case e.Begin != nil:
			first = *e.Begin
		case e.Undo != nil:
			undos = append(undos, *e.Undo)
		case e.Made != nil:
			last = e.Made
		}
	}
	return first, undos, last, nil
}
