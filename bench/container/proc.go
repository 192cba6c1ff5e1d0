package container

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// proc is a program in a container. The embedded Proc is the engine's command that
// started it, with its standard streams and exit status.
type proc struct {
	lab.Proc
	// parent returns the container's parent process once it exists: a shim, a monitor, a
	// starter.
	parent func() (pid int, ok bool)
	// pidFile holds the process id of the container's first process once that exists; "":
	// the engine does not tell, and all children of the parent are the container's.
	pidFile string
	// reapLater is called with a parent that does not end soon after its container.
	reapLater func(pid int)
	// remove removes the container by a command of the engine.
	remove func()

	killed atomic.Bool
	once   sync.Once
	err    error
}

// containerPIDs returns the container's processes that the parent has started. Before the
// first exists, the parent has other, short-lived children.
func (p *proc) containerPIDs() []int {
	parent, ok := p.parent()
	if !ok {
		return nil
	}
	all := children(parent)
	if p.pidFile == "" {
		return all
	}
	first, ok := readPID(p.pidFile)
	if !ok || !slices.Contains(all, first) {
		return nil
	}
	return []int{first}
}

// PID returns the process id of the container's first process. Until that exists, after
// it has ended, and if the engine does not tell, it is that of the engine's command,
// which ends later.
func (p *proc) PID() int {
	if inside := p.containerPIDs(); p.pidFile != "" && len(inside) > 0 {
		return inside[0]
	}
	return p.Proc.PID()
}

// Kill kills the container's first process, as its engine would, without waiting for the
// engine.
func (p *proc) Kill() {
	inside := p.containerPIDs()
	for _, pid := range inside {
		unix.Kill(pid, unix.SIGKILL)
	}
	if len(inside) > 0 {
		p.killed.Store(p.pidFile != "") // else it may have been a process before the first
		return
	}
	if p.killed.Load() {
		return // it is about to end; asking the engine would take longer
	}
	// The process does not exist yet, or has ended by itself.
	if p.remove != nil {
		p.remove()
	}
	p.Proc.Kill()
}

// Wait also reaps the container's parent if it has become a child of this process.
func (p *proc) Wait() error {
	p.once.Do(func() {
		pid, ok := p.parent()
		p.err = p.Proc.Wait()
		if late, there := p.parent(); !ok && there {
			pid, ok = late, true
		}
		if ok && pid != p.Proc.PID() && !reap(pid) {
			p.reapLater(pid)
		}
	})
	return p.err
}

// A container's parent may take this long to end after its container.
const (
	reapPoll    = 2 * time.Millisecond
	reapTimeout = time.Second
)

// reap waits for a child of this process that another process has started: the lab's
// first process inherits the children of processes that end. It reports false if the
// child does not end in time, and true for a process that is no child.
func reap(pid int) bool {
	if os.Getpid() != 1 {
		return true
	}
	for deadline := time.Now().Add(reapTimeout); time.Now().Before(deadline); time.Sleep(reapPoll) {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if got == pid || err != nil && !errors.Is(err, unix.EINTR) {
			return true
		}
	}
	return false
}
