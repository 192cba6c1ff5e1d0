package cell

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"cleat/internal/columns"
)

// Warning is something that a reader of a number must know. Warnings of one Code
// concern different samples or cells, and can be merged.
type Warning struct {
	Code     string  `json:"code"`               // the kind of warning
	Count    int     `json:"count,omitempty"`    // samples concerned; 0: all of them, or none in particular
	Severity float64 `json:"severity,omitempty"` // orders warnings of one Code, the worst last
	Text     string  `json:"text"`               // a sentence without its full stop
}

// Note returns a warning that is its own kind.
func Note(text string) Warning { return Warning{Code: text, Text: text} }

// UnmarshalJSON also accepts a bare string, the form of older files.
func (w *Warning) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte(`"`)) {
		var text string
		err := json.Unmarshal(b, &text)
		*w = Note(text)
		return err
	}
	type plain Warning
	return json.Unmarshal(b, (*plain)(w))
}

// String returns the warning with the number of samples that it concerns.
func (w Warning) String() string { return Merge(w) }

// Merge returns one text for warnings of one Code: the range of their counts
// and the text of the most severe. Without warnings it returns "".
func Merge(ws ...Warning) string {
	if len(ws) == 0 {
		return ""
	}
	worst, least, most := ws[0], ws[0].Count, ws[0].Count
	for _, w := range ws[1:] {
		least, most = min(least, w.Count), max(most, w.Count)
		if w.Severity > worst.Severity {
			worst = w
		}
	}
	switch {
	case most == 0:
		return worst.Text
	case least == 0 || least == most:
		return columns.Plural(most, "sample") + ": " + worst.Text
	}
	return fmt.Sprintf("%d–%d samples: %s", least, most, worst.Text)
}

// Codes returns the codes of ws in the order of first use, each once.
func Codes(ws []Warning) []string {
	var codes []string
	for _, w := range ws {
		if !slices.Contains(codes, w.Code) {
			codes = append(codes, w.Code)
		}
	}
	return codes
}

// Coded returns the warnings of ws that have the code.
func Coded(ws []Warning, code string) []Warning {
	return slices.DeleteFunc(slices.Clone(ws), func(w Warning) bool { return w.Code != code })
}
