package container

import (
	"testing"
)

// Only words that need no quotes are completed.
func TestTypable(t *testing.T) {
	if words := Pasteable([]string{"web", "web;reboot", "a b", "-", "$(x)"}); len(words) != 2 {
		t.Errorf("completed: %q", words)
	}
}
