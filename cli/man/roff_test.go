package man

import (
	"testing"
)

// TestRoff converts characters that are special in roff, and indented lines.
func TestRoff(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"paragraphs":   {"One\nline.\n\nTwo.\n", "One\nline.\n.PP\nTwo.\n"},
		"a table":      {"Presets:\n  quick\n\n  wire\nThat is all.", "Presets:\n.PP\n.EX\nquick\n\nwire\n.EE\n.PP\nThat is all.\n"},
		"at the end":   {"So:\n\n  cleat ls", "So:\n.PP\n.EX\ncleat ls\n.EE\n"},
		"code":         {"by `cleat keep`", "by \\fBcleat keep\\fR\n"},
		"never closed": {"a ` alone", "a \\(ga alone\n"},
		"characters":   {`it's --x \ ~ ^`, "it\\(aqs \\-\\-x \\e \\(ti \\(ha\n"},
		"a full stop":  {".ci/run", "\\&.ci/run\n"},
	} {
		if got := roffParagraphs(c.text); got != c.want {
			t.Errorf("%s:\ngot\n%s\nwant\n%s", name, got, c.want)
		}
	}
}
