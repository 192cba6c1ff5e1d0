package term

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A Terminal is where output goes. The zero value is not a terminal.
type Terminal struct {
	Width  int  // columns, at most 120; 0: unknown
	Colour bool // it shows colours, and the user wants them
}

// Of returns the terminal behind w. The user refuses colours by the environment variable
// NO_COLOR (https://no-color.org) or by TERM=dumb.
func Of(w io.Writer) Terminal {
	f, ok := w.(*os.File)
	if !ok {
		return Terminal{}
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return Terminal{}
	}
	return Terminal{Width: min(int(size.Col), 120), Colour: os.Getenv("NO_COLOR") == "" && !isDumb()}
}

// IsTerminal reports whether f is a terminal on which the cursor can be moved.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && !isDumb()
}

// isDumb reports whether the terminal understands no escape sequences.
func isDumb() bool { return os.Getenv("TERM") == "dumb" }
