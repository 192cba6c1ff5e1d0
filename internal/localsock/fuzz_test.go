package localsock

import (
	"strings"
	"testing"
)

// FuzzParse reads /proc/net/unix, in which everybody chooses names.
func FuzzParse(f *testing.F) {
	f.Add("0000000000000000: 00000002 00000000 00010000 0001 01 20001 @cleat/1000/web\n")
	f.Add("0000000000000000: 00000002 00000000 00010000 0001 01 20001 @cleat/-1/\x1b/x\n")
	f.Fuzz(func(t *testing.T, table string) {
		for _, s := range Kind("cleat").parse([]byte(table)) {
			if s.Kind != "cleat" || !strings.HasPrefix(s.String(), "@cleat/") {
				t.Errorf("%+v", s)
			}
		}
	})
}
