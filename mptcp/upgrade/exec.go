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

// Config is the program to execute.
type Config struct {
	Path string   // path of its file
	Args []string // Args[0] is the program's own name
	Env  []string // nil means the caller's environment
	// Strict makes socket(2) fail where the kernel refuses MPTCP, instead of returning a
	// TCP socket.
	Strict bool
}

// environ is the variable that gives a copy of this program its role.
const environ = "CLEAT_MPTCP"

// The roles of copies.
const (
	roleStart  = "start" // start the supervisor and exit
	roleServe  = "serve" // be the supervisor
	roleStrict = "serve strict"
)

// socketFD is the descriptor of the socket to the process that a copy serves.
const socketFD = 3

// Init must be called first in main by programs that use Exec. In the supervisor process,
// it does the supervisor's work and does not return.
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
		return // another program's variable
	}
	if err != nil {
		_ = unix.Send(socketFD, []byte(err.Error()), unix.MSG_NOSIGNAL)
		os.Exit(1)
	}
	os.Exit(0)
}

// Exec replaces this process by the program, with a supervisor that upgrades its sockets.
// It returns only on error: if supervision is impossible here (ErrOtherSupervisor,
// ErrOldKernel, sys.ErrSeccompArch), or, as a *StartError, if execve(2) fails. This
// thread may have the filter by then, so the caller should report the error and exit.
func Exec(cfg Config) error {
	runtime.LockOSThread() // the filter belongs to a thread, and this thread becomes the program
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

// StartError means that the program could not be executed.
type StartError struct {
	Path string
	Err  error
}

func (e *StartError) Error() string { return fmt.Sprintf("run %q: %v", e.Path, e.Err) }
func (e *StartError) Unwrap() error { return e.Err }

// supervise starts a supervisor for the calling thread and waits until it is ready.
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
	starter := copyOfSelf(roleStart+":"+role, theirs)
	starter.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = starter.Run()
	theirs.Close()
	if err == nil {
		err = answerOf(ours) // the supervisor is running
	} else if reason := answerOf(ours); reason != nil {
		err = reason
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

// copyOfSelf returns a command that runs this program in another role, with all files closed
// except the socket.
func copyOfSelf(role string, socket *os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"cleat", "mptcp", "run", "(supervisor)"}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, environ+"=") }), environ+"="+role)
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Dir = "/" // do not keep a file system busy
	return cmd
}

// answerOf waits until the peer reports success, by a message of one byte, or an error.
func answerOf(socket int) error {
	buf := make([]byte, 512)
	for {
		n, _, err := unix.Recvfrom(socket, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("receive from supervisor: %w", err)
		case n == 0:
			return errors.New("it ended at once")
		case n == 1:
			return nil
		default:
			return errors.New(string(buf[:n]))
		}
	}
}

// startApart starts the supervisor as an orphan.
func startApart(role string) error {
	// The supervisor must not hold what the caller has open for the program.
	if err := unix.CloseRange(socketFD+1, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close files: %w", err)
	}
	unix.CloseOnExec(socketFD)
	return copyOfSelf(role, os.NewFile(socketFD, "client")).Start()
}

func ready() error { return unix.Send(socketFD, []byte{0}, unix.MSG_NOSIGNAL) }

func serve(strict bool) error {
	unix.CloseOnExec(socketFD)
	// A shutdown that signals all processes at once gives the program time to end, during
	// which it may want sockets. The supervisor ends with the program.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	if err := ready(); err != nil {
		return err
	}
	notifications, err := receive()
	if err != nil {
		return err
	}
	home, err := namespaceAt("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("look at own network namespace: %w", err)
	}
	if err := ready(); err != nil {
		return err
	}
	unix.Close(socketFD)
	s := &supervisor{notifications: notifications, strict: strict, home: home, root: os.Geteuid() == 0}
	return s.run()
}

// receive receives the descriptor of the notifications.
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
