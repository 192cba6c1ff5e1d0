package upgrade

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Config is the program to become.
type Config struct {
	Path string   // of its file
	Args []string // Args[0] is its name for itself
	Env  []string // nil: our own
	// Strict has socket(2) fail where the kernel refuses MPTCP, instead of giving TCP.
	Strict bool
}

// environ is the variable that tells a process of ours what it is.
const environ = "CLEAT_MPTCP"

// The roles.
const (
	roleStart  = "start" // start the supervisor, and end
	roleServe  = "serve" // be it
	roleStrict = "serve strict"
)

// socketFD is where these find their socket to whom they serve.
const socketFD = 3

// Init must be called first thing in main by programs that use Exec: where this
// process is the supervisor, Init does that work and never returns.
func Init() {
	role, ok := os.LookupEnv(environ)
	if !ok {
		return
	}
	var err error
	switch what, rest, _ := strings.Cut(role, ":"); what {
	case roleStart:
		err = startApart(rest)
	case roleServe, roleStrict:
		err = serve(what == roleStrict)
	default:
		return // somebody else's variable
	}
	if err != nil {
		_ = unix.Send(socketFD, []byte(err.Error()), unix.MSG_NOSIGNAL)
		os.Exit(1)
	}
	os.Exit(0)
}

// Exec turns this process into the program, with a supervisor that upgrades its
// sockets. It returns only an error: of what can't be supervised here
// (ErrOtherSupervisor, ErrOldKernel, sys.ErrSeccompArch), or of execve(2), a
// *StartError. By then this thread may have the filter: there is nothing to do but to
// say so and end.
func Exec(cfg Config) error {
	runtime.LockOSThread() // the filter is a thread's, and this one becomes the program
	if cfg.Env == nil {
		cfg.Env = os.Environ()
	}
	if !upgraded() {
		if err := supervise(cfg.Strict); err != nil {
			return fmt.Errorf("supervise system calls: %w", err)
		}
	}
	return &StartError{cfg.Path, unix.Exec(cfg.Path, cfg.Args, cfg.Env)}
}

// StartError says that the program could not be executed.
type StartError struct {
	Path string
	Err  error
}

func (e *StartError) Error() string { return fmt.Sprintf("run %q: %v", e.Path, e.Err) }
func (e *StartError) Unwrap() error { return e.Err }

// supervise starts a supervisor for the calling thread, and waits until it is one.
func supervise(strict bool) error {
	if _, err := filter(); err != nil {
		return err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make socket pair: %w", err)
	}
	ours, theirs := fds[0], os.NewFile(uintptr(fds[1]), "supervisor")
	defer unix.Close(ours)
	role := roleServe
	if strict {
		role = roleStrict
	}
	starter := again(roleStart+":"+role, theirs)
	starter.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = starter.Run()
	theirs.Close()
	if err == nil {
		err = answerOf(ours) // it is there
	} else if said := answerOf(ours); said != nil {
		err = said
	}
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	notifications, err := install()
	if err != nil {
		return err
	}
	defer unix.Close(notifications)
	if err := unix.Sendmsg(ours, []byte{0}, unix.UnixRights(notifications), nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("hand over notifications: %w", err)
	}
	return answerOf(ours)
}

// again is this program with another role, its files closed but for the socket.
func again(role string, socket *os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"cleat", "mptcp", "run", "(supervisor)"}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, environ+"=") }), environ+"="+role)
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Dir = "/" // to keep nobody from unmounting
	return cmd
}

// answerOf waits until the other side says that all is well, by an empty message, or
// else what is not.
func answerOf(socket int) error {
	buf := make([]byte, 512)
	for {
		n, _, err := unix.Recvfrom(socket, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("hear from supervisor: %w", err)
		case n == 0:
			return errors.New("it ended at once")
		case n == 1:
			return nil
		default:
			return errors.New(string(buf[:n]))
		}
	}
}

// startApart starts the supervisor as nobody's child.
func startApart(role string) error {
	// What our caller has open for the program, the supervisor must not hold.
	if err := unix.CloseRange(socketFD+1, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close files: %w", err)
	}
	unix.CloseOnExec(socketFD)
	return again(role, os.NewFile(socketFD, "client")).Start()
}

// ready says that all is well.
func ready() error { return unix.Send(socketFD, []byte{0}, unix.MSG_NOSIGNAL) }

// serve is the supervisor's life.
func serve(strict bool) error {
	unix.CloseOnExec(socketFD)
	// Whoever ends all processes at once gives the program time, in which it may want
	// sockets; we end with it.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	if err := ready(); err != nil {
		return err
	}
	notifications, err := receive()
	if err != nil {
		return err
	}
	s, err := newSupervisor(notifications, strict)
	if err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	unix.Close(socketFD)
	return s.run()
}

// receive takes the descriptor of the notifications over.
func receive() (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	var n int
	var err error
	for {
		_, n, _, _, err = unix.Recvmsg(socketFD, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return -1, fmt.Errorf("receive notifications: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, fmt.Errorf("receive notifications: %w", err)
	}
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, errors.New("receive notifications: the program gave up")
}
