package report

import (
	"strings"
	"testing"
)

func inputs() map[string]Input {
	partial := quickInput()
	partial.Partial = true
	return map[string]Input{
		"quick": quickInput(), "claassen2015": thesisInput(), "udp": udpInput(), "partial": partial, "nothing": {},
	}
}

func TestTableKeepsToItsWidth(t *testing.T) {
	for name, in := range inputs() {
		for _, width := range []int{40, 60, 80, 100, 160} {
			var b strings.Builder
			if err := Table(&b, in, width); err != nil {
				t.Fatal(err)
			}
			for _, l := range strings.Split(b.String(), "\n") {
				if n := columns(l); n > width {
					t.Errorf("%s at %d columns: a line takes %d: %q", name, width, n, l)
				}
			}
			if testing.Verbose() && width == 80 {
				t.Logf("%s\n%s", name, b.String())
			}
		}
	}
}
