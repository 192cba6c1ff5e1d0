package remote

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the user's, on which ssh asks for host keys and passphrases. While ssh may
// ask, its process group has the terminal. Later it has not, so that a Ctrl-C reaches this
// process alone, which then ends both machines' work in order. A nil terminal is none.
type terminal struct {
	tty      *os.File
	restored bool
}

// foreground returns the terminal, if this process may read from it; else nil.
func foreground() *terminal {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		tty.Close()
		return nil
	}
	return &terminal{tty: tty}
}

// attributes are those of a process that gets the terminal, or, with none, of one that a
// Ctrl-C does not reach.
func (t *terminal) attributes() *syscall.SysProcAttr {
	if t == nil {
		return &syscall.SysProcAttr{Setpgid: true}
	}
	return &syscall.SysProcAttr{Foreground: true, Ctty: int(t.tty.Fd())}
}

// restore takes the terminal back. Only the first call has an effect.
func (t *terminal) restore() {
	if t == nil || t.restored {
		return
	}
	t.restored = true
	signal.Ignore(syscall.SIGTTOU) // a process in the background is stopped by the next call otherwise
	unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, unix.Getpgrp())
	signal.Reset(syscall.SIGTTOU)
	t.tty.Close()
}
