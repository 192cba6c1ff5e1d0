package hint

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/internal/spell"
)

// hinted is an error together with what to do about it.
type hinted struct {
	err  error
	hint string
}

func (e hinted) Error() string { return e.err.Error() }

func (e hinted) Unwrap() error { return e.err }

func (e hinted) Hint() string { return e.hint }

// With adds to err what to type or to change; the door prints it on lines
// of its own. An empty hint adds nothing, and nil stays nil.
func With(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return hinted{err, hint}
}

func Print(w io.Writer, err error) {
	text, all := err.Error(), All(err)
	for _, h := range all { // a link.Lack has it in its text, too, for those who print no hints
		text = strings.TrimSuffix(text, " ("+h+")")
	}
	fmt.Fprintf(w, "cleat: error: %s\n", columns.PlainLines(text))
	for _, h := range all {
		for line := range strings.Lines(h) {
			fmt.Fprintf(w, "cleat: hint: %s\n", columns.Plain(strings.TrimRight(line, "\n")))
		}
	}
}

// All are the remedies that err carries, outermost first, each once.
func All(err error) []string {
	var all []string
	add := func(h string) {
		if h != "" && !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	if e, is := err.(interface{ Hint() string }); is {
		add(e.Hint())
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		for _, h := range All(e.Unwrap()) {
			add(h)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			for _, h := range All(inner) {
				add(h)
			}
		}
	}
	return all
}

// DidYouMean is a hint that names the nearest known word, or lists all of them
// where none is near. Words that mean something to a shell, as names of links may, are
// quoted.
func DidYouMean(word string, known []string) string {
	if n := spell.Nearest(word, known); n != "" && n != columns.Word(n) {
		return "did you mean " + columns.Word(n) + "?"
	}
	quoted := make([]string, len(known))
	for i, k := range known {
		quoted[i] = columns.Word(k)
	}
	return spell.Hint(word, quoted)
}
