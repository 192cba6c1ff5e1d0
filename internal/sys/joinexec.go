package sys

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// JoinExec describes a program to start in existing namespaces. A process with several
// threads cannot enter a user namespace (user_namespaces(7)), and a Go program always has
// several. So Start forks, and the child, which has one thread, enters the namespaces
// before it executes the program.
type JoinExec struct {
	Path string
	Args []string // from argv[0]
	Env  []string
	User int    // user namespace to enter first; -1: none
	Net  int    // network namespace to enter; -1: none
	Keep int    // descriptor that stays open under its number, besides 0, 1 and 2
	Caps uint64 // capabilities to keep across exec as ambient ones; bit n is capability n
}

// Start starts the program and returns its process id, for wait4. If the child fails
// before it executes the program, the error names the step.
func (j JoinExec) Start() (pid int, err error) {
	path, badPath := syscall.BytePtrFromString(j.Path)
	args, badArgs := syscall.SlicePtrFromStrings(j.Args)
	env, badEnv := syscall.SlicePtrFromStrings(j.Env)
	if err := cmp.Or(badPath, badArgs, badEnv); err != nil {
		return 0, fmt.Errorf("start %q: %w", j.Path, err)
	}
	var report [2]int
	if err := unix.Pipe2(report[:], unix.O_CLOEXEC); err != nil {
		return 0, fmt.Errorf("create pipe: %w", err)
	}
	defer unix.Close(report[0])
	c := joinChild{path: path, argv: &args[0], envp: &env[0], user: j.User, net: j.Net, keep: j.Keep, caps: j.Caps, report: report[1]}

	syscall.ForkLock.Lock()
	pid, errno := forkJoin(&c)
	syscall.ForkLock.Unlock()
	unix.Close(report[1])
	runtime.KeepAlive(args)
	runtime.KeepAlive(env)
	if errno != 0 {
		return 0, fmt.Errorf("fork: %w", errno)
	}
	if err := childError(report[0], j.Path); err != nil {
		var status unix.WaitStatus
		for {
			if _, e := unix.Wait4(pid, &status, 0, nil); !errors.Is(e, unix.EINTR) {
				break
			}
		}
		return 0, err
	}
	return pid, nil
}

// childError reads the error that the child reports; none means that it has executed the
// program.
func childError(fd int, path string) error {
	var said [16]byte
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, said[:])
	}
	if err != nil || n != len(said) {
		return err
	}
	words := (*[2]int64)(unsafe.Pointer(&said))
	step, errno := joinStep(words[0]), syscall.Errno(words[1])
	if step == stepExec {
		return fmt.Errorf("execute %q: %w", path, errno)
	}
	return fmt.Errorf("%s: %w", joinSteps[step], errno)
}

// joinStep is a step of the child.
type joinStep int64

const (
	stepUser joinStep = iota
	stepNet
	stepCaps
	stepKeep
	stepExec
)

var joinSteps = [...]string{
	stepUser: "join user namespace",
	stepNet:  "join network namespace",
	stepCaps: "keep capabilities",
	stepKeep: "keep descriptor",
	stepExec: "execute",
}

// joinChild holds what the child needs, prepared before the fork.
type joinChild struct {
	path       *byte
	argv, envp **byte
	user, net  int
	keep       int
	caps       uint64
	report     int
	said       [2]int64
	header     unix.CapUserHeader
	data       [2]unix.CapUserData
}

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

// forkJoin forks. Only the parent's side returns. The child shares no memory with the
// parent (no CLONE_VM): entering a user namespace changes credentials, which makes the
// memory undumpable, and the parent's must stay as it is.
//
// Like the runtime's own fork, this must not grow the stack, allocate, or be preempted
// after beforeFork.
//
//go:noinline
//go:norace
func forkJoin(c *joinChild) (int, syscall.Errno) {
	beforeFork()
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		afterFork()
		return int(pid), errno
	}
	afterForkInChild()
	c.run()
	for {
		syscall.RawSyscall(syscall.SYS_EXIT, 253, 0, 0)
	}
}

// run is the child's side. It returns after a step failed and was reported.
//
//go:noinline
//go:norace
//go:nosplit
func (c *joinChild) run() {
	step, errno := c.enter()
	c.said[0], c.said[1] = int64(step), int64(errno)
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.report), uintptr(unsafe.Pointer(&c.said)), unsafe.Sizeof(c.said))
}

//go:norace
//go:nosplit
func (c *joinChild) enter() (joinStep, syscall.Errno) {
	if c.user >= 0 {
		if _, _, e := syscall.RawSyscall(unix.SYS_SETNS, uintptr(c.user), unix.CLONE_NEWUSER, 0); e != 0 {
			return stepUser, e
		}
	}
	if c.net >= 0 {
		if _, _, e := syscall.RawSyscall(unix.SYS_SETNS, uintptr(c.net), unix.CLONE_NEWNET, 0); e != 0 {
			return stepNet, e
		}
	}
	if e := c.keepCaps(); e != 0 {
		return stepCaps, e
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_FCNTL, uintptr(c.keep), unix.F_SETFD, 0); e != 0 {
		return stepKeep, e
	}
	_, _, e := syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(c.argv)), uintptr(unsafe.Pointer(c.envp)))
	return stepExec, e
}

// keepCaps makes capabilities inheritable and then ambient. Without that a process that
// is not root in its user namespace loses them at execve.
//
//go:norace
//go:nosplit
func (c *joinChild) keepCaps() syscall.Errno {
	if c.caps == 0 {
		return 0
	}
	c.header.Version = unix.LINUX_CAPABILITY_VERSION_3
	if _, _, e := syscall.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&c.header)), uintptr(unsafe.Pointer(&c.data)), 0); e != 0 {
		return e
	}
	c.data[0].Inheritable |= c.data[0].Permitted & uint32(c.caps)
	c.data[1].Inheritable |= c.data[1].Permitted & uint32(c.caps>>32)
	if _, _, e := syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&c.header)), uintptr(unsafe.Pointer(&c.data)), 0); e != 0 {
		return e
	}
	for n := uintptr(0); n < 64; n++ {
		if c.caps&(1<<n) == 0 {
			continue
		}
		if _, _, e := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, n, 0, 0, 0); e != 0 {
			return e
		}
	}
	return 0
}
