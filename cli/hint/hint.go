package hint

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/internal/spell"
)

type hinted struct {
	err  error
	hint string
}

func (e hinted) Error() string { return e.err.Error() }
func (e hinted) Unwrap() error { return e.err }
func (e hinted) Hint() string  { return e.hint }

// With returns err with a hint about what to type or to change. The hint may have several
// lines. With returns err itself if it is nil or the hint is empty.
func With(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return hinted{err, hint}
}

// Print writes err and its hints, one on a line. Text from others can't look like a further
// message.
func Print(w io.Writer, err error) {
	text, all := err.Error(), All(err)
	for _, h := range all { // the text of a link.Lack ends with its remedy
		text = strings.TrimSuffix(text, " ("+h+")")
	}
	fmt.Fprintf(w, "cleat: error: %s\n", columns.PlainLines(text))
	for _, h := range all {
		for line := range strings.Lines(h) {
			fmt.Fprintf(w, "cleat: hint: %s\n", columns.Plain(strings.TrimRight(line, "\n")))
		}
	}
}

// All returns the hints of err and of the errors that it wraps, outermost first, without
// repetitions.
func All(err error) []string {
	var all []string
	add := func(hints ...string) {
		for _, h := range hints {
			if h != "" && !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
	}
	if e, ok := err.(interface{ Hint() string }); ok {
		add(e.Hint())
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		add(All(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			add(All(inner)...)
		}
	}
	return all
}

// DidYouMean returns a hint that names the known word nearest to word, or lists all known
// words if none is near. Words that mean something to a shell, as names of links may, are
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
