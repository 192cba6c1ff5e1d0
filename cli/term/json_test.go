package term

import (
	"io"
	"testing"

	"cleat/cli/term/termtest"
)

// JSON carries no character that a terminal acts on.
func TestHostileJSON(t *testing.T) {
	for name, write := range map[string]func(io.Writer, any) error{"indented": WriteJSON, "one line": WriteJSONLine} {
		t.Run(name, func(t *testing.T) {
			termtest.CheckPrint(t, func(w io.Writer, text string) error {
				return write(w, map[string]any{"name": text, "steps": []string{text, text}})
			})
		})
	}
}
