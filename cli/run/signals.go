package run

import (
	"os"
	"os/signal"
	"syscall"

	"cleat/internal/procstat"
)

// forwarded are the signals that this process passes to the command.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGCONT,
}

// signals catches signals for the command.
type signals struct {
	caught chan os.Signal
	stat   *os.File // /proc/self/stat, opened before Seal; nil without /proc
}

// catchSignals starts to catch signals. Those that are ignored (nohup) stay ignored, for the
// command as well. SIGPIPE is caught and dropped: if nobody reads standard error any more, the
// command keeps its network.
func catchSignals() *signals {
	s := &signals{caught: make(chan os.Signal, 16)}
	for _, sig := range append(forwarded, syscall.SIGPIPE) {
		if !signal.Ignored(sig) {
			signal.Notify(s.caught, sig)
		}
	}
	s.stat, _ = os.Open("/proc/self/stat")
	return s
}

// pending returns a caught signal whose default action ends a process, if there is one.
func (s *signals) pending() (syscall.Signal, bool) {
	for {
		select {
		case sig := <-s.caught:
			if sig != syscall.SIGCONT && sig != syscall.SIGPIPE {
				return sig.(syscall.Signal), true
			}
		default:
			return 0, false
		}
	}
}

// forward passes signals to p. It never returns.
func (s *signals) forward(p *os.Process) {
	for sig := range s.caught {
		// A terminal sends these two to all processes in its foreground, the command included.
		fromKeyboard := (sig == syscall.SIGINT || sig == syscall.SIGQUIT) && s.foreground()
		if sig == syscall.SIGPIPE || fromKeyboard {
			continue
		}
		p.Signal(sig) // an error means that it has ended
	}
}

// foreground reports whether this process is in the foreground of a terminal. Then a SIGINT or
// SIGQUIT that another process sends to this one alone looks as if it came from the keyboard,
// and is not forwarded.
func (s *signals) foreground() bool {
	if s.stat == nil {
		return false
	}
	buf := make([]byte, 1024)
	n, err := s.stat.ReadAt(buf, 0)
	if n == 0 && err != nil {
		return false
	}
	return inForeground(buf[:n])
}

// inForeground reports whether the process of a line of /proc/PID/stat is in its terminal's
// foreground process group.
func inForeground(stat []byte) bool {
	const group, foreground = 5, 8
	s, _ := procstat.Parse(stat)
	return s.Field(foreground) != "" && s.Field(group) == s.Field(foreground)
}
