package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"cleat/cli/exit"
	"cleat/cli/hint"
	"cleat/internal/localsock"
	"cleat/policy"
	"cleat/sandbox"
	"cleat/sandbox/control"

	"golang.org/x/sys/unix"
)

// runner is one `cleat run` under way.
type runner struct {
	flags  *flags
	say    *eventLog
	rules  *policy.Policy
	net    *sandbox.Network
	server *control.Server // nil: --control off
	target *target
	stop   func() // what "cleat ctl stop" does
}

// run is `cleat run`: check everything, build the network, seal, and carry.
func (f *flags) run(ctx context.Context, args []string, stderr io.Writer) error {
	if err := f.checkUse(args); err != nil {
		return err
	}
	cfg, rules, err := f.config()
	if err != nil {
		return err
	}
	var ns sandbox.Namespace
	if f.netns != "" {
		if ns, err = f.namespace(); err != nil {
			return err
		}
	}
	r := &runner{flags: f, say: newEventLog(stderr, f.asJSON)}
	defer r.say.close()
	if r.rules, err = policy.New(policy.Config{Rules: rules}); err != nil {
		return hint.Usage(err)
	}
	cfg.Policy, cfg.Log = r.rules, r.say.logger()
	if f.verbose {
		cfg.OnRefused = r.say.refused
	}
	capture, err := f.openCapture()
	if err != nil {
		return err
	}
	if capture != nil {
		defer capture.Close()
		cfg.Pcap = capture
	}
	if err := f.openListener(&cfg); err != nil {
		return err
	}
	if cfg.RuntimeListener != nil {
		defer cfg.RuntimeListener.Close()
	}
	// Threads that move bytes keep a processor while they are busy; others need one as well.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	if r.net, err = sandbox.New(cfg); err != nil {
		return libraryError(err)
	}
	defer r.net.Close()
	if err := r.listen(); err != nil {
		return err
	}
	if r.server != nil {
		defer r.server.Close()
	}
	if f.netns != "" {
		ctx, stop := exit.Interruptible()
		defer stop()
		return r.join(ctx, ns)
	}
	return r.command(ctx, args)
}

// openListener opens the socket of --listener.
func (f *flags) openListener(cfg *sandbox.Config) (err error) {
	if f.listener == "" {
		return nil
	}
	cfg.RuntimeListener, err = sandbox.ListenForRuntimes(f.listener)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("--listener %s: %w", f.listener, err)
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, localsock.ErrTaken):
		return hint.With(err, "name another path")
	case errors.Is(err, sandbox.ErrDirectoryNotPrivate):
		return hint.With(err, "who reaches the socket gets host sockets: put it into a directory of yours, e.g. `mkdir -m 700 "+filepath.Join(filepath.Dir(f.listener), "private")+"`")
	}
	return err
}

// listen opens the control socket. By default its name is our process id; where
// another PID namespace's helper has that already, a number is appended.
func (r *runner) listen() error {
	f := r.flags
	var err error
	switch {
	case f.control == "off":
		return nil
	case f.control != "":
		r.server, err = control.ListenPath(f.control)
	case f.name != "":
		if err := control.CheckName(f.name); err != nil {
			return hint.Usagef("--name: %w", err)
		}
		r.server, err = control.Listen(f.name)
	default:
		f.name = strconv.Itoa(os.Getpid())
		r.server, err = control.Listen(f.name)
		for i := 2; errors.Is(err, control.ErrTaken) && i < 10; i++ {
			f.name = fmt.Sprintf("%d-%d", os.Getpid(), i)
			r.server, err = control.Listen(f.name)
		}
	}
	switch {
	case errors.Is(err, control.ErrTaken):
		return hint.With(err, "choose another name, or see what is running: cleat ctl ls")
	case errors.Is(err, fs.ErrExist):
		return hint.With(err, "it is no socket: remove it, or give another path")
	}
	return err
}

// join serves a namespace that exists, until it ends or a signal comes.
func (r *runner) join(ctx context.Context, ns sandbox.Namespace) error {
	if err := r.net.Join(ctx, ns); err != nil {
		return setupError(err)
	}
	where := ns.Path
	if where == "" {
		where = fmt.Sprintf("/proc/%d/ns/net", ns.PID)
	}
	if err := r.prepare(ctx, nil, 0, where); err != nil {
		return err
	}
	err := r.carry(ctx)
	r.end()
	var stopped exit.Signalled
	if errors.As(context.Cause(ctx), &stopped) {
		return exit.Status(exit.Signal + int(stopped.Signal))
	}
	return err
}

// command runs args in a network of its own.
func (r *runner) command(ctx context.Context, args []string) error {
	path, err := LookUp(args[0])
	if err != nil {
		return err
	}
	cmd := exec.Command(path)
	cmd.Args = args
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = inheritedFiles()
	inherited := cmd.ExtraFiles
	if err := r.net.Wrap(cmd); err != nil {
		return setupError(err)
	}
	signals := catchSignals() // before there is a process that they are meant for
	if err := cmd.Start(); err != nil {
		return setupError(fmt.Errorf("start %q: %w", args[0], sandbox.StartError(err)))
	}
	letGo(inherited)
	r.stop = func() { cmd.Process.Signal(syscall.SIGTERM) } // it may have ended
	if err := r.prepare(ctx, args, cmd.Process.Pid, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)); err != nil {
		cmd.Process.Kill() // it waits for the network
		cmd.Wait()
		if s, ok := signals.pending(); ok {
			return exit.Status(exit.Signal + int(s))
		}
		return err
	}
	go signals.passTo(cmd.Process)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	carried := make(chan error, 1)
	go func() { carried <- r.carryFor(ctx) }()
	waited := cmd.Wait()
	cancel()
	err = <-carried
	r.end()
	return cmp.Or(err, exitOf(waited))
}

// carryFor is carry for a command: should the network fail, the command lives
// on without. The error is that the command could not be executed.
func (r *runner) carryFor(ctx context.Context) error {
	err := r.carry(ctx)
	var setup *sandbox.SetupError
	switch {
	case err == nil:
	case !errors.As(err, &setup):
		r.say.warn(fmt.Sprintf("the command has no network any more: %v", err))
	case errors.Is(err, fs.ErrNotExist):
		return exit.With(exit.NotFound, hint.With(err, "the interpreter that its first line names, or its dynamic linker, is missing"))
	default:
		return exit.With(exit.NotExecutable, setupError(err))
	}
	return nil
}

// prepare opens everything, says which ports there are, and gives up all
// rights that carrying bytes does not take. command is the process id of the
// command that args started; 0: none.
func (r *runner) prepare(ctx context.Context, args []string, command int, namespace string) error {
	if err := r.net.Prepare(ctx); err != nil {
		return setupError(err)
	}
	r.target = newTarget(r, args, namespace)
	r.say.ready(r.target.Info(), r.target.explicit(), r.flags)
	tier, _ := r.net.Tier()
	seal := sandbox.SealConfig{SignalPID: command, Supervise: tier == sandbox.TierSeccomp, Containers: r.net.Config().RuntimeListener != nil}
	if err := sandbox.Seal(seal); err != nil {
		return fmt.Errorf("give up rights before the command begins: %w", err)
	}
	return nil
}

// carry moves bytes and takes orders until the network ends.
func (r *runner) carry(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	if r.stop == nil {
		r.stop = cancel
	}
	if r.server != nil {
		serving.Go(func() {
			if err := r.server.Serve(ctx, r.target); err != nil {
				r.say.warn(err.Error())
			}
		})
	}
	return r.net.Run(ctx)
}

// end prints what is asked for when all is over.
func (r *runner) end() {
	if r.flags.stats {
		r.say.stats(wireStats(r.net.Stats()))
	}
}

// setupError adds what to do about a network that could not be made.
func setupError(err error) error {
	var setup *sandbox.SetupError
	var file *os.PathError
	switch {
	case errors.As(err, &setup):
		return hint.With(err, setup.Hint())
	case errors.As(err, &file) && errors.Is(err, syscall.EACCES):
		return hint.With(err, "it is another user's: run it as that user, or with sudo")
	case errors.Is(err, syscall.EADDRINUSE):
		return hint.With(err, "another program listens there: publish another port, or :PORT for any free one; `ss -ltunp` shows which")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return hint.With(err, "this host has no such address; `ip -brief address` lists those it has")
	case errors.Is(err, syscall.EACCES):
		return hint.With(err, "ports below net.ipv4.ip_unprivileged_port_start (1024) are root's: publish a higher one, e.g. -p 8080:80")
	}
	return err
}

// LookUp finds a program as the shell does, with the shell's exit codes.
func LookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return "", exit.With(exit.NotExecutable, fmt.Errorf("run %q: it is a directory", name))
		}
		return path, nil
	case errors.Is(err, exec.ErrDot):
		return "", exit.With(exit.NotFound, hint.With(fmt.Errorf("run %q: %w", name, exec.ErrNotFound), "to run the file of this name, give it as ./"+name))
	case errors.Is(err, fs.ErrPermission):
		return "", exit.With(exit.NotExecutable, fmt.Errorf("run %q: %w", name, syscall.EACCES))
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", exit.With(exit.NotFound, fmt.Errorf("run %q: there is no such program", name))
	}
	return "", exit.With(exit.NotExecutable, fmt.Errorf("run %q: %w", name, errors.Unwrap(err)))
}

// exitOf is how we end when the command ended with err.
func exitOf(err error) error {
	var status *exec.ExitError
	if !errors.As(err, &status) {
		return err
	}
	if s := status.Sys().(syscall.WaitStatus); s.Signaled() {
		return exit.Status(exit.Signal + int(s.Signal()))
	}
	return exit.Status(status.ExitCode())
}

// inheritedFiles are the files beyond standard error that our caller passed to
// us (a jobserver, sockets of systemd), in their places, for the command.
func inheritedFiles() []*os.File {
	const most = 256 // beyond, the kernel passes them on without us
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil // without /proc there are none that one could know of
	}
	var files []*os.File
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 || fd >= most {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // our own are all closed on exec
		}
		for len(files) < fd-2 {
			files = append(files, nil)
		}
		files[fd-3] = os.NewFile(uintptr(fd), "inherited")
	}
	return files
}

// letGo closes what the command has of its own by now: were we to hold the other
// end of a pipe open, its reader would wait for us.
func letGo(inherited []*os.File) {
	for _, f := range inherited {
		if f != nil {
			f.Close()
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return // a courtesy
	}
	defer null.Close()
	for fd := range 2 {
		unix.Dup3(int(null.Fd()), fd, 0) // as before, it stays open on failure
	}
}
