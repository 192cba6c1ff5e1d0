package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/spell"
	"cleat/internal/yamlfile"
)

// Severity tells an error, with which no tunnel can be, from a warning.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Finding is something about a tunnel file that its author must know.
type Finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`   // from 1
	Column   int      `json:"column"` // from 1
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`           // what is wrong, and what is wanted instead
	Allowed  string   `json:"allowed,omitempty"` // what may stand there, where that can be said
	Hint     string   `json:"hint,omitempty"`    // what to type or to change
}

// Plain is text that a terminal shows as it is: of what others have written each control
// character and each that shows nothing becomes "?". A file's name or contents could else
// write to the terminal what its author likes.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// String is the finding as compilers write theirs, in one line of Plain text.
func (f Finding) String() string {
	s := fmt.Sprintf("%s:%d:%d: %s: %s", f.File, f.Line, f.Column, f.Severity, f.Message)
	if f.Hint != "" {
		s += "; " + f.Hint
	}
	return Plain(s)
}

// findings collects what is found in one file.
type findings struct {
	file string
	doc  *yamlfile.Document
	all  []Finding
}

// add adds a finding about the value at a path and returns it, for more to be
// said. The pointer is valid until the next.
func (f *findings) add(path string, severity Severity, message string) *Finding {
	at := f.doc.Place(path)
	f.all = append(f.all, Finding{File: f.file, Line: at.Line, Column: at.Column, Severity: severity, Message: message})
	return &f.all[len(f.all)-1]
}

// wrong adds the error that a value is not what is wanted.
func (f *findings) wrong(path, want, format string, args ...any) {
	f.add(path, Error, fmt.Sprintf(format, args...)+": want "+want).Allowed = want
}

// refuse adds an error that has nothing to do with how a value is written.
func (f *findings) refuse(path, format string, args ...any) *Finding {
	return f.add(path, Error, fmt.Sprintf(format, args...))
}

// warn adds a warning.
func (f *findings) warn(path, format string, args ...any) *Finding {
	return f.add(path, Warning, fmt.Sprintf(format, args...))
}

// unknown adds the error that a word is none of known.
func (f *findings) unknown(path, what, word string, known []string) {
	e := f.add(path, Error, fmt.Sprintf("unknown %s %q", what, word))
	e.Allowed, e.Hint = listed(known), spell.Hint(word, known)
}

// read adds the problems that the reader had.
func (f *findings) read(problems []yamlfile.Problem) {
	for _, p := range problems {
		e := Finding{File: f.file, Line: p.Line, Column: p.Column, Severity: Error, Message: p.Text, Allowed: p.Want}
		if p.Known != nil {
			e.Allowed, e.Hint = listed(p.Known), spell.Hint(p.Word, p.Known)
		}
		f.all = append(f.all, e)
	}
}

// sorted is everything in the order of the file.
func (f *findings) sorted() []Finding {
	slices.SortStableFunc(f.all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return f.all
}

// failed tells whether there is an error.
func (f *findings) failed() bool {
	return slices.ContainsFunc(f.all, func(f Finding) bool { return f.Severity == Error })
}

// given tells whether the file has a readable value at a path.
func (f *findings) given(path string) bool { return f.doc.Given(path) && !f.doc.Wrong(path) }

// missing tells whether the file has nothing at a path, not even something
// wrong.
func (f *findings) missing(path string) bool { return !f.doc.Given(path) }
