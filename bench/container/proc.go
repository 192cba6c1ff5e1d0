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

// proc is a program in a container. Proc is the engine's command that started
// it, and has its standard streams and its exit status.
type proc struct {
	lab.Proc
	// parent is the container's parent process, once it is there: a shim, a
	// monitor, a starter.
	parent func() (pid int, ok bool)
	// pidFile has the container's first process, once it is there; "": its engine
	// does not tell, and all children of the parent are the container's.
	pidFile string
	// later is told of a parent that does not end soon after its container.
	later func(pid int)
	// remove takes the container away by the engine's own means.
	remove func()

	killed atomic.Bool
	once   sync.Once
	err    error
}

// inside are the container's processes that the parent has started. Before the
// first is there, the parent has other children, which come and go.
func (p *proc) inside() []int {
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

// PID is the process id of the container's first process, or, until it is
// there, when it is gone, and where the engine does not tell, of the engine's
// command, which ends after it.
func (p *proc) PID() int {
	if inside := p.inside(); p.pidFile != "" && len(inside) > 0 {
		return inside[0]
	}
	return p.Proc.PID()
}

// Kill ends the container's first process, as its engine would, without waiting
// for the engine.
func (p *proc) Kill() {
	inside := p.inside()
	for _, pid := range inside {
		unix.Kill(pid, unix.SIGKILL)
	}
	if len(inside) > 0 {
		p.killed.Store(p.pidFile != "") // else it may have been what comes before the first
		return
	}
	if p.killed.Load() {
		return // it is about to be gone: the engine need not be asked
	}
	// It has not come so far, or has ended by itself.
	if p.remove != nil {
		p.remove()
	}
	p.Proc.Kill()
}

// Wait also lets the container's parent go, should it be our child by now.
func (p *proc) Wait() error {
	p.once.Do(func() {
		pid, ok := p.parent()
		p.err = p.Proc.Wait()
		if late, there := p.parent(); !ok && there {
			pid, ok = late, true
		}
		if ok && pid != p.Proc.PID() && !reap(pid) {
			p.later(pid)
		}
	})
	return p.err
}

// How long a container's parent may take to end after its container.
const (
	reapEvery = 2 * time.Millisecond
	reapFor   = time.Second
)

// reap waits for a process that is our child although somebody else started it:
// whose parents have ended become the lab's first process's. It is false when the
// process did not end in time; of what is not our child there is nothing to do.
func reap(pid int) bool {
	if os.Getpid() != 1 {
		return true
	}
	for deadline := time.Now().Add(reapFor); time.Now().Before(deadline); time.Sleep(reapEvery) {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if got == pid || err != nil && !errors.Is(err, unix.EINTR) {
			return true
		}
	}
	return false
}
