package summary

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"cleat/bench/catalog"
)

func TestExistingPathIsStated(t *testing.T) {
	f := newFake(t, 3)
	f.run(truth{cellOf(catalog.ExistingPath, "outbound"), 9, 1, 50 * time.Microsecond}, truth{cellOf(catalog.ExistingPath, "inbound"), 8, 1, 0})
	advice := Recommend(f.results())
	for _, brief := range []bool{true, false} {
		var b bytes.Buffer
		if err := WriteAdvice(&b, advice, brief); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		for _, want := range []string{"This path, outbound: TCP ", "Gbit/s (", "µs median round trip", "p99.9 ", "cores per Gbit/s", "This path, inbound: TCP "} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in\n%s", want, text)
			}
		}
		if strings.Contains(text, "Nothing to recommend") || strings.Contains(text, "Use ") {
			t.Errorf("recommends:\n%s", text)
		}
	}
}
