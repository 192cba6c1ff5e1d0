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

// Severity distinguishes errors, with which a tunnel can't run, from warnings.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Finding is a mistake in a tunnel file or a warning about it.
type Finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`   // from 1
	Column   int      `json:"column"` // from 1
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`           // what is wrong, and what is wanted instead
	Allowed  string   `json:"allowed,omitempty"` // allowed values, where they can be listed
	Hint     string   `json:"hint,omitempty"`    // what to type or to change
}

// Plain replaces each control character and each invisible character by "?", so that text
// from others is safe to print. Otherwise a file's name or contents could send commands
// to the terminal.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// String formats the finding like a compiler message, in one line of Plain text.
func (f Finding) String() string {
	s := fmt.Sprintf("%s:%d:%d: %s: %s", f.File, f.Line, f.Column, f.Severity, f.Message)
	if f.Hint != "" {
		s += "; " + f.Hint
	}
	return Plain(s)
}

// document describes the contents of a file: whether a key is given, whether its value is
// invalid, and where the value is.
type document interface {
	Given(key string) bool
	Wrong(key string) bool
	Place(key string) yamlfile.Place
}

type findings struct {
	file string
	doc  document
	all  []Finding
}

// add adds a finding about the value at a key and returns it, so that the caller can
// complete it. The pointer is valid until the next call.
func (f *findings) add(path string, severity Severity, message string) *Finding {
	at := f.doc.Place(path)
	f.all = append(f.all, Finding{File: f.file, Line: at.Line, Column: at.Column, Severity: severity, Message: message})
	return &f.all[len(f.all)-1]
}

// reject adds the error that a value is not as wanted.
func (f *findings) reject(path, want, format string, args ...any) {
	f.add(path, Error, fmt.Sprintf(format, args...)+": want "+want).Allowed = want
}

// fail adds an error that is not about the form of a value.
func (f *findings) fail(path, format string, args ...any) *Finding {
	return f.add(path, Error, fmt.Sprintf(format, args...))
}

func (f *findings) warn(path, format string, args ...any) *Finding {
	return f.add(path, Warning, fmt.Sprintf(format, args...))
}

func (f *findings) addProblems(problems []yamlfile.Problem) {
	for _, p := range problems {
		e := Finding{File: f.file, Line: p.Line, Column: p.Column, Severity: Error, Message: p.Text, Allowed: p.Want}
		if p.Known != nil {
			e.Allowed, e.Hint = strings.Join(p.Known, ", "), spell.Hint(p.Word, p.Known)
		}
		f.all = append(f.all, e)
	}
}

// sorted returns all findings in the order of the file.
func (f *findings) sorted() []Finding {
	slices.SortStableFunc(f.all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return f.all
}

// isSet reports whether the file has a readable value at a key.
func (f *findings) isSet(path string) bool { return f.doc.Given(path) && !f.doc.Wrong(path) }

// isMissing reports whether the file has nothing at a key, not even an invalid value.
func (f *findings) isMissing(path string) bool { return !f.doc.Given(path) }
