package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// An error that has others' words in it can't forge a hint.
func TestForeignError(t *testing.T) {
	var b bytes.Buffer
	printError(&b, withHint(errors.New("find "+evil), "use "+evil))
	harmless(t, b.String())
	for i, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if strings.HasPrefix(line, "cleat: ") != (i != 1) {
			t.Errorf("line %d is %q", i, line)
		}
	}
}

// Names in hints can be pasted: a shell takes each for one word.
func TestHostileDidYouMean(t *testing.T) {
	const name = "web;reboot"
	for _, word := range []string{"web;rebo", "nothing"} {
		if hint := didYouMean(word, []string{name, "x"}); strings.Contains(strings.ReplaceAll(hint, "'"+name+"'", ""), name) {
			t.Errorf("%s: %s", word, hint)
		}
	}
}
