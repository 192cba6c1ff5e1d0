package experiment

import (
	"fmt"
	"slices"

	"cleat/internal/spell"
)

// Error is a mistake in an experiment or in a flag that changes one. It is found before
// anything starts.
type Error struct {
	File         string // "": the mistake is not in a file
	Line, Column int    // from 1; 0: unknown
	Problem      string // e.g. `unknown network "vteh"`
	Word         string // the invalid word; "": the mistake is not a word
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

// Hint returns what to write instead: the valid word nearest to Word, or all valid words;
// "" if Problem says it.
func (e *Error) Hint() string { return spell.Hint(e.Word, e.Known) }

// unknown returns an Error for a word that is none of the valid ones.
func unknown(path, what, word string, valid []string) *Error {
	return &Error{path: path, Problem: fmt.Sprintf("unknown %s %q", what, word), Word: word, Known: valid}
}

// firstUnknown returns an *Error for the first word that is none of the valid ones. The
// path is that of the list of words.
func firstUnknown(path, what string, words, valid []string) error {
	for i, w := range words {
		if !slices.Contains(valid, w) {
			return unknown(fmt.Sprintf("%s[%d]", path, i), what, w, valid)
		}
	}
	return nil
}

// invalid returns an Error for a value that is out of range.
func invalid(path, format string, args ...any) *Error {
	return &Error{path: path, Problem: fmt.Sprintf(format, args...)}
}
