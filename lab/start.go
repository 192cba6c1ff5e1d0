package lab

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"cleat/internal/program"

	"golang.org/x/sys/unix"
)

// Command is a program to run on a node. Args[0] is the program's name or path.
type Command struct {
	Args   []string
	CPU    []int    // processors it may run on; nil: all
	Stdin  *os.File // nil: nothing to read
	Stdout *os.File // nil: discarded
	Stderr *os.File // nil: discarded
	Extra  []*os.File
}

// Runner starts programs: a Node, or the Host.
type Runner interface {
	Start(Command) (Proc, error)
}

// Proc is a running program. It is safe for concurrent use.
type Proc interface {
	// Wait blocks until the program has ended. A non-zero exit code is an error.
	Wait() error
	// Kill kills the program. Wait must still be called.
	Kill()
	// PID returns the process id in the lab, or 0 for a program on the host.
	PID() int
}

// Self is the path of this program, for Command.Args.
const Self = "/proc/self/exe"

func (c Command) cmd() *exec.Cmd {
	cmd := program.Command(c.Args[0], c.Args[1:]...)
	if c.Stdin != nil {
		cmd.Stdin = c.Stdin
	}
	if c.Stdout != nil {
		cmd.Stdout = c.Stdout
	}
	if c.Stderr != nil {
		cmd.Stderr = c.Stderr
	}
	cmd.ExtraFiles = c.Extra
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, flavourEnv+"=")
	})
	return cmd
}

// startPinned starts cmd on the given processors. The child inherits the affinity of this
// thread, and so does every thread it starts; in Go programs GOMAXPROCS follows. It must
// be called on a locked thread.
func startPinned(cmd *exec.Cmd, cpus []int) error {
	if len(cpus) == 0 {
		return cmd.Start()
	}
	var before, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the processor affinity: %w", err)
	}
	for _, c := range cpus {
		want.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		return fmt.Errorf("pin %s to processors %v: %w", cmd.Path, cpus, err)
	}
	err := cmd.Start()
	if back := unix.SchedSetaffinity(0, &before); err == nil && back != nil {
		return fmt.Errorf("restore the processor affinity: %w", back)
	}
	return err
}

// localProc is a program in a namespace of the lab.
type localProc struct {
	cmd  *exec.Cmd
	wait func() error
}

func newLocalProc(cmd *exec.Cmd) *localProc { return &localProc{cmd, sync.OnceValue(cmd.Wait)} }

func (p *localProc) PID() int    { return p.cmd.Process.Pid }
func (p *localProc) Kill()       { p.cmd.Process.Kill() }
func (p *localProc) Wait() error { return p.wait() }
