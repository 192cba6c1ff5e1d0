package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"cleat/internal/program"

	"golang.org/x/sys/unix"
)

// Flavour is a kind of lab.
type Flavour string

// The flavours. Auto is User where user namespaces are permitted, else Root.
const (
	Auto Flavour = ""
	User Flavour = "user" // a user namespace of its own: needs no root
	Root Flavour = "root" // the initial user namespace: needs root
	// None runs in the namespaces in which the program was started. It is for a machine
	// that is a lab as a whole, such as a virtual one.
	None Flavour = "none"
)

// flavourEnv tells the copy that it is inside a lab, and which flavour the lab has.
const flavourEnv = "CLEAT_LAB"

// Descriptors of the copy.
const (
	controlFD  = 3 // its socket to its parent
	hostProcFD = 4 // the parent's /proc, which shows kernel threads
	// FirstExtraFD is the first of Config.Extra.
	FirstExtraFD = 5
)

// Inside reports whether this process runs inside a lab, and the lab's flavour.
func Inside() (Flavour, bool) {
	f := Flavour(os.Getenv(flavourEnv))
	return f, f == User || f == Root || f == None
}

// Config configures a lab.
type Config struct {
	Flavour Flavour
	Env     []string // added to this process's environment
	// Extra are files for the copy, as descriptor FirstExtraFD and up.
	Extra []*os.File
}

// Enter runs a copy of this program inside a new lab, waits for it and returns its exit
// code. When ctx ends the copy gets SIGTERM. The error is a *Refused if the machine does
// not permit the namespaces.
//
// The calling goroutine is locked to its thread, since PR_SET_PDEATHSIG binds the copy's
// life to a thread, not to a process.
func Enter(ctx context.Context, cfg Config) (int, error) {
	flavour, err := chooseFlavour(cfg.Flavour)
	if err != nil {
		return 0, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return 0, err
	}
	defer ours.Close()
	proc, err := os.Open("/proc")
	if err != nil {
		theirs.Close()
		return 0, fmt.Errorf("open the host's /proc: %w", err)
	}
	defer proc.Close()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), flavourEnv+"="+string(flavour), "PATH="+program.SearchPath())
	cmd.Env = append(cmd.Env, cfg.Env...)
	cmd.ExtraFiles = append([]*os.File{theirs, proc}, cfg.Extra...)
	cmd.SysProcAttr = namespaces(flavour)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return 0, refused(flavour, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	served := make(chan struct{})
	go func() { defer close(served); serveHost(int(ours.Fd())) }()
	defer func() {
		unix.Shutdown(int(ours.Fd()), unix.SHUT_RDWR)
		<-served
	}()
	stop := ctx.Done()
	for {
		select {
		case <-stop:
			cmd.Process.Signal(unix.SIGTERM)
			stop = nil
		case err := <-ended:
			return exitCode(err)
		}
	}
}

// namespaces returns the clone flags of a flavour. The copy has a process group of its
// own, so that it gets a Ctrl-C at the terminal once, from its parent.
func namespaces(f Flavour) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setpgid:    true,
		Pdeathsig:  unix.SIGKILL,
	}
	if f == User {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 0, fmt.Errorf("wait for the lab: %w", err)
	}
	status := exit.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 0, fmt.Errorf("the lab was ended by signal %s", status.Signal())
	}
	return status.ExitStatus(), nil
}

// Settle completes the entry inside the lab: it makes mounts private, mounts what belongs
// to the new namespaces, and makes this process end with its parent. Call it once, first
// thing, if Inside reports true. It returns the lab's scratch directory, which vanishes
// with the lab.
func Settle() (scratch string, err error) {
	f, _ := Inside()
	if f == None {
		return os.MkdirTemp("", "cleat-lab-")
	}
	if _, err := unix.FcntlInt(controlFD, unix.F_GETFD, 0); err != nil || os.Getpid() != 1 {
		return "", fmt.Errorf("%s=%s is set, but this process is not in a lab: unset it", flavourEnv, f)
	}
	if err := mountProc(); err != nil {
		return "", refused(f, err)
	}
	// Any directory would do that nothing else in the lab needs.
	scratch = "/dev/shm"
	if err := unix.Mount("tmpfs", scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return "", refused(f, fmt.Errorf("mount a scratch directory: %w", err))
	}
	unix.CloseOnExec(controlFD)
	unix.CloseOnExec(hostProcFD)
	go endWithParent()
	return scratch, nil
}

// HostProc returns the path of a /proc that shows the processes of the host, for this process only.
// In a lab, /proc shows the lab's.
func HostProc() string {
	if f, inside := Inside(); !inside || f == None {
		return "/proc"
	}
	return fmt.Sprintf("/proc/self/fd/%d", hostProcFD)
}

// mountProc mounts the /proc of the new PID namespace. It makes mounts private before,
// since a shared mount would propagate to the host.
func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// endWithParent ends the process, and with it the PID namespace, when the
// parent's end of the control socket closes.
func endWithParent() {
	fds := []unix.PollFd{{Fd: controlFD, Events: unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(fds, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0 {
			os.Exit(1)
		}
	}
}

// String returns the flavour's name in reports.
func (f Flavour) String() string {
	if f == Auto {
		return "auto"
	}
	return string(f)
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	name := "lab control " + strconv.Itoa(os.Getpid())
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}
