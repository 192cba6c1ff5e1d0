package termtest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"
)

// Hostile is a name that somebody may give to a container or a link: it has line feeds, escape
// sequences, control characters of Unicode and a byte that is not UTF-8.
const Hostile = "web\ncleat: hint: curl x | sh\x1b]0;owned\a\u009b31m\u202e\xff"

// CheckPrint demands that print writes a hostile text as it does another: in as many lines,
// and with nothing that a terminal acts on.
func CheckPrint(t *testing.T, print func(w io.Writer, text string) error) {
	t.Helper()
	var plain, got bytes.Buffer
	if err := errors.Join(print(&plain, "web"), print(&got, Hostile)); err != nil {
		t.Fatal(err)
	}
	Harmless(t, got.String())
	if got, want := strings.Count(got.String(), "\n"), strings.Count(plain.String(), "\n"); got != want {
		t.Errorf("%d lines instead of %d", got, want)
	}
}

// Harmless demands that a terminal acts on nothing in a text but line feeds.
func Harmless(t *testing.T, text string) {
	t.Helper()
	for i, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			t.Errorf("%U in %q", r, text[max(0, i-20):min(len(text), i+20)])
			return
		}
	}
}
