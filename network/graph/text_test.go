package graph

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"cleat/internal/columns"
	"cleat/network/survey"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

// golden compares got with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func draw(t *testing.T, s *survey.Survey, opt Options, term Terminal) string {
	t.Helper()
	var b bytes.Buffer
	if err := Text(&b, s, opt, term); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestText(t *testing.T) {
	for _, tt := range []struct {
		name string
		s    *survey.Survey
		opt  Options
		term Terminal
	}{
		{"host.txt", fixture(), Options{}, Terminal{}},
		{"all.txt", fixture(), Options{All: true}, Terminal{}},
		{"only.txt", fixture(), Options{Only: map[uint64]bool{2: true, 8: true}}, Terminal{}},
		{"networks.txt", networked(), Options{}, Terminal{}},
		{"networks-of-db1.txt", networked(), Options{Only: map[uint64]bool{4: true}}, Terminal{}},
		{"switch.txt", switched(), Options{}, Terminal{Width: 100}},
		{"narrow.txt", fixture(), Options{}, Terminal{Width: 60}},
		{"colour.txt", fixture(), Options{Only: map[uint64]bool{1: true}}, Terminal{Width: 100, Colour: true}},
		{"crowd.txt", crowd(7), Options{}, Terminal{}},
		{"", hostile(), Options{}, Terminal{}},
		{"nothing.txt", &survey.Survey{}, Options{}, Terminal{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := draw(t, tt.s, tt.opt, tt.term)
			if tt.name != "" {
				golden(t, tt.name, []byte(got))
			}
			width := max(80, tt.term.Width)
			if tt.term.Width > 0 {
				width = tt.term.Width
			}
			bare := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(got, "")
			for i, l := range strings.Split(bare, "\n") {
				if n := columns.Of(l); n > width {
					t.Errorf("line %d takes %d columns of %d: %q", i+1, n, width, l)
				}
				if strings.TrimRight(l, " ") != l {
					t.Errorf("line %d ends with blanks: %q", i+1, l)
				}
				if i := strings.IndexFunc(l, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }); i >= 0 {
					t.Errorf("a control character is left: %q", l)
				}
			}
		})
	}
}

// Every link that is not hidden is drawn exactly once in the tree of its own namespace.
func TestTextDrawsEveryLink(t *testing.T) {
	s := crowd(40)
	text := draw(t, s, Options{All: true}, Terminal{Width: 120})
	for _, n := range s.Namespaces {
		from := strings.Index("\n"+text, "\n"+n.Label+"  ")
		if from < 0 {
			t.Fatalf("%s is not drawn", n.Label)
		}
		block, _, _ := strings.Cut(text[from:], "\n\n")
		for _, l := range n.Links {
			if c := len(regexp.MustCompile(`(?m)─ `+regexp.QuoteMeta(l.Name)+` `).FindAllString(block, -1)); c != 1 {
				t.Errorf("%s/%s is drawn %d times:\n%s", n.Label, l.Name, c, block)
			}
		}
	}
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestWritersErrors(t *testing.T) {
	if err := Text(broken{}, fixture(), Options{}, Terminal{}); !errors.Is(err, errBroken) {
		t.Errorf("Text: %v", err)
	}
	if err := SVG(broken{}, fixture(), Options{}); !errors.Is(err, errBroken) {
		t.Errorf("SVG: %v", err)
	}
}
