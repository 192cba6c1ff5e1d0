package main

import (
	"io"
	"testing"
)

// JSON carries no character that a terminal acts on.
func TestHostileJSON(t *testing.T) {
	for name, write := range map[string]func(io.Writer, any) error{"indented": writeJSON, "one line": writeJSONLine} {
		t.Run(name, func(t *testing.T) {
			checkPrint(t, func(w io.Writer, text string) error {
				return write(w, map[string]any{"name": text, "steps": []string{text, text}})
			})
		})
	}
}
