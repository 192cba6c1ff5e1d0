package run

import (
	"bytes"
	"os"
	"os/signal"
	"syscall"
)

// passed are the signals that are meant for the command when we get them.
var passed = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGCONT,
}

// signals are those that we catch on the command's behalf.
type signals struct {
	caught chan os.Signal
	stat   *os.File // /proc/self/stat, open before Seal; nil: no /proc
}

// catchSignals begins to catch. What is ignored (nohup) stays so, for the
// command too. SIGPIPE is caught and dropped: when nobody reads our standard
// error any more, the command keeps its network.
func catchSignals() *signals {
	s := &signals{caught: make(chan os.Signal, 16)}
	for _, sig := range append(passed, syscall.SIGPIPE) {
		if !signal.Ignored(sig) {
			signal.Notify(s.caught, sig)
		}
	}
	s.stat, _ = os.Open("/proc/self/stat")
	return s
}

// pending is a signal that came and would have ended a command that does not
// expect it.
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

// passTo hands signals on to p. It never returns.
func (s *signals) passTo(p *os.Process) {
	for sig := range s.caught {
		if sig == syscall.SIGPIPE || fromKeyboard(sig) && s.foreground() {
			continue
		}
		p.Signal(sig) // it may have ended
	}
}

// fromKeyboard tells the signals that a terminal sends to all processes in its
// foreground, so that the command has got them itself.
func fromKeyboard(sig os.Signal) bool { return sig == syscall.SIGINT || sig == syscall.SIGQUIT }

// foreground tells whether we are in the foreground of a terminal. A signal of
// the keyboard's kind that somebody else sends to us alone is not told apart
// there, and not passed on.
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

// inForeground reads a line of /proc/PID/stat: "PID (COMM) STATE PPID PGRP
// SESSION TTY_NR TPGID …".
func inForeground(stat []byte) bool {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(f) >= 6 && bytes.Equal(f[2], f[5])
}
