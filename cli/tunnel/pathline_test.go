package tunnel

import (
	"testing"
	"time"

	"cleat/tunnel/control"
)

// TestPathLine checks what is said below the table about paths that others fill or that lose too
// much.
func TestPathLine(t *testing.T) {
	for _, tt := range []struct {
		path control.Path
		want string
	}{
		{control.Path{Name: "dsl"}, ""},
		{control.Path{Name: "dsl", Contended: true}, "dsl: others fill it too\n"},
		{control.Path{Name: "dsl", Tripped: true}, "dsl: loses too much: nothing is sent again, and little is sent\n"},
	} {
		if got := pathLine(tt.path, time.Time{}); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
