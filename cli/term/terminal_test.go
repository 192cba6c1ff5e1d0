package term

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A user who sets NO_COLOR or TERM=dumb gets no escape sequences on a terminal.
func TestColour(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer pty.Close()
	for _, tt := range []struct {
		name, term, noColor string
		colour, terminal    bool
	}{
		{"ordinary", "xterm", "", true, true},
		{"NO_COLOR", "xterm", "1", false, true},
		{"dumb", "dumb", "", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("TERM", tt.term)
			t.Setenv("NO_COLOR", tt.noColor)
			if got := Of(pty); got.Colour != tt.colour {
				t.Errorf("colour %t", got.Colour)
			}
			if IsTerminal(pty) != tt.terminal {
				t.Errorf("terminal %t", !tt.terminal)
			}
		})
	}
}
