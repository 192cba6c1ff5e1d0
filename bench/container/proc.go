package container

import (
	"errors"
	"os"
	"sync"
	"time"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// proc is a program in a container. Proc is the engine's command that started
// it, and has its standard streams and its exit status.
type proc struct {
	lab.Proc
	// parent is the container's parent process, once it is there: a shim, a
	// monitor, a starter. Its only child is the container's first process.
	parent func() (pid int, ok bool)
	// later is told of a parent that does not end soon after its container.
	later func(pid int)
	// remove takes the container away by the engine's own means.
	remove func()

	once sync.Once
	err  error
}

// PID is the process id of the container's first process, or, until it is
// there, of the engine's command.
func (p *proc) PID() int {
	if pid, ok := p.parent(); ok {
		if inside := children(pid); len(inside) > 0 {
			return inside[0]
		}
	}
	return p.Proc.PID()
}

// Kill ends the container's first process, as its engine would, without waiting
// for the engine.
func (p *proc) Kill() {
	if pid, ok := p.parent(); ok {
		if inside := children(pid); len(inside) > 0 {
			for _, child := range inside {
				unix.Kill(child, unix.SIGKILL)
			}
			return
		}
	}
	// It has not come so far, or is gone already.
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
