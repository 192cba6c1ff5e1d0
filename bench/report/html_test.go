package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var preview = flag.String("preview", "", "write the test's reports to this directory, to look at them")

func TestHTMLIsDeterministic(t *testing.T) {
	for name, in := range inputs() {
		var a, b bytes.Buffer
		if err := HTML(&a, in); err != nil {
			t.Fatal(err)
		}
		if err := HTML(&b, in); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%s: two runs differ", name)
		}
		if *preview != "" {
			if err := os.WriteFile(filepath.Join(*preview, name+".html"), a.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
