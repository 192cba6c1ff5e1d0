package hint

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"cleat/cli/term/termtest"
)

// Text from others in an error can't look like a hint.
func TestHostileError(t *testing.T) {
	var b bytes.Buffer
	Print(&b, With(errors.New("find "+termtest.Hostile), "use "+termtest.Hostile))
	termtest.Harmless(t, b.String())
	for i, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if strings.HasPrefix(line, "cleat: ") != (i != 1) {
			t.Errorf("line %d is %q", i, line)
		}
	}
}

// Names in hints can be pasted: a shell reads each as one word.
func TestHostileDidYouMean(t *testing.T) {
	const name = "web;reboot"
	for _, word := range []string{"web;rebo", "nothing"} {
		if hint := DidYouMean(word, []string{name, "x"}); strings.Contains(strings.ReplaceAll(hint, "'"+name+"'", ""), name) {
			t.Errorf("%s: %s", word, hint)
		}
	}
}
