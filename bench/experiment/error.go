package experiment

import (
	"fmt"

	"cleat/internal/spell"
)

// Error is a mistake in an experiment or in what was asked of one. Nothing has
// been started when it appears.
type Error struct {
	File         string // "" when the mistake is not in a file
	Line, Column int    // from 1; 0 where unknown
	Problem      string // e.g. `unknown network "vteh"`
	Word         string // the word that is wrong, "" if it is not a word
	Known        []string

	path string // YAMLPath of the value, to find its line
}

func (e *Error) Error() string {
	switch {
	case e.File == "":
		return e.Problem
	case e.Line == 0:
		return e.File + ": " + e.Problem
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// Hint is what to write instead: the nearest word that would be valid, or all
// of them; "" when the problem says enough.
func (e *Error) Hint() string { return spell.Hint(e.Word, e.Known) }

// unknown is the Error for a word that is none of known.
func unknown(path, what, word string, known []string) *Error {
	return &Error{path: path, Problem: fmt.Sprintf("unknown %s %q", what, word), Word: word, Known: known}
}

// wrong is the Error for a value that is not what it should be.
func wrong(path, format string, args ...any) *Error {
	return &Error{path: path, Problem: fmt.Sprintf(format, args...)}
}
