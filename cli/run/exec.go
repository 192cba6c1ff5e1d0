package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
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

// runner is a running `cleat run`.
type runner struct {
	flags  *flags
	events *eventLog
	rules  *policy.Policy
	net    *sandbox.Network
	server *control.Server // nil with --control off
	target *target
	stop   func() // ends it, for "cleat ctl stop"
}

// run checks the flags, makes the network, and carries its traffic until the command, or the
// namespace of --netns, has ended.
func (f *flags) run(ctx context.Context, args []string, stderr io.Writer) error {
	if err := f.check(args); err != nil {
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
	r := &runner{flags: f, events: newEventLog(stderr, f.json)}
	defer r.events.close()
	if r.rules, err = policy.New(policy.Config{Rules: rules}); err != nil {
		return hint.Usage(err)
	}
	cfg.Policy, cfg.Log = r.rules, slog.New(&logHandler{events: r.events})
	if f.verbose {
		cfg.OnRefused = r.events.refused
	}
	capture, err := f.openCapture(cfg.Log)
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
		return configError(err)
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
		return hint.With(err, "choose another path")
	case errors.Is(err, sandbox.ErrDirectoryNotPrivate):
		return hint.With(err, "whoever reaches the socket gets host sockets: put it in a directory of your own, e.g. `mkdir -m 700 "+filepath.Join(filepath.Dir(f.listener), "private")+"`")
	}
	return err
}

// listen opens the control socket. Its default name is the process id. If a helper in another
// PID namespace has that name, a number is appended.
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
		return hint.With(err, "choose another name; `cleat ctl ls` lists those in use")
	case errors.Is(err, fs.ErrExist):
		return hint.With(err, "it is not a socket: remove it, or choose another path")
	}
	return err
}

// join serves an existing namespace until it ends or a signal arrives.
func (r *runner) join(ctx context.Context, ns sandbox.Namespace) error {
	if err := r.net.Join(ctx, ns); err != nil {
		return setupError(err)
	}
	if err := r.prepare(ctx, nil, 0, cmp.Or(ns.Path, fmt.Sprintf("/proc/%d/ns/net", ns.PID))); err != nil {
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

// command runs a command in a network of its own.
func (r *runner) command(ctx context.Context, args []string) error {
	path, err := LookUp(args[0])
	if err != nil {
		return err
	}
	cmd := exec.Command(path)
	cmd.Args = args
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = inheritedFiles()
	if err := r.net.Wrap(cmd); err != nil {
		return setupError(err)
	}
	signals := catchSignals() // before the process exists that they are meant for
	if err := cmd.Start(); err != nil {
		return setupError(fmt.Errorf("start %q: %w", args[0], sandbox.StartError(err)))
	}
	closeInherited(cmd.ExtraFiles)
	r.stop = func() { cmd.Process.Signal(syscall.SIGTERM) } // an error means that it has ended
	if err := r.prepare(ctx, args, cmd.Process.Pid, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)); err != nil {
		cmd.Process.Kill() // it is waiting for the network
		cmd.Wait()
		if s, ok := signals.pending(); ok {
			return exit.Status(exit.Signal + int(s))
		}
		return err
	}
	go signals.forward(cmd.Process)
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

// carryFor calls carry for a command. If the network fails, the command goes on without it.
// The error means that the command could not be executed.
func (r *runner) carryFor(ctx context.Context) error {
	err := r.carry(ctx)
	var setup *sandbox.SetupError
	switch {
	case err == nil:
	case !errors.As(err, &setup):
		r.events.warn(fmt.Sprintf("the command has lost its network: %v", err))
	case errors.Is(err, fs.ErrNotExist):
		return exit.With(exit.NotFound, hint.With(err, "the interpreter in its first line, or its dynamic linker, is missing"))
	default:
		return exit.With(exit.NotExecutable, setupError(err))
	}
	return nil
}

// prepare opens what the network needs, reports the forwarded ports, and gives up all rights
// that carrying traffic does not need. command is the process id of the command, or 0.
func (r *runner) prepare(ctx context.Context, args []string, command int, namespace string) error {
	if err := r.net.Prepare(ctx); err != nil {
		return setupError(err)
	}
	r.target = newTarget(r, args, namespace)
	r.events.ready(r.target.Info(), r.target.explicitForwards(), r.flags)
	tier, _ := r.net.Tier()
	seal := sandbox.SealConfig{SignalPID: command, Supervise: tier == sandbox.TierSeccomp, Containers: r.net.Config().RuntimeListener != nil}
	if err := sandbox.Seal(seal); err != nil {
		return fmt.Errorf("give up rights before the command starts: %w", err)
	}
	return nil
}

// carry carries traffic and serves the control socket until the network ends.
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
				r.events.warn(err.Error())
			}
		})
	}
	return r.net.Run(ctx)
}

// end prints the counters of --stats.
func (r *runner) end() {
	if r.flags.stats {
		s := wireStats(r.net.Stats())
		r.events.put(event{Event: "stats", Stats: &s}, StatsText(s))
	}
}

// setupError adds a hint to the error of a network that could not be set up.
func setupError(err error) error {
	var setup *sandbox.SetupError
	var file *os.PathError
	switch {
	case errors.As(err, &setup):
		return hint.With(err, setup.Hint())
	case errors.As(err, &file) && errors.Is(err, syscall.EACCES):
		return hint.With(err, "the namespace belongs to another user: run this as that user, or with sudo")
	case errors.Is(err, syscall.EADDRINUSE):
		return hint.With(err, "another program uses the port (see `ss -ltunp`): publish another one, or :PORT for any free port")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return hint.With(err, "this host has no such address; `ip -brief address` lists its addresses")
	case errors.Is(err, syscall.EACCES):
		return hint.With(err, "only root may use ports below net.ipv4.ip_unprivileged_port_start (1024): publish a higher one, e.g. -p 8080:80")
	}
	return err
}

// LookUp finds a program as a shell does. Its errors have the exit codes of shells.
func LookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return "", exit.With(exit.NotExecutable, fmt.Errorf("run %q: is a directory", name))
		}
		return path, nil
	case errors.Is(err, exec.ErrDot):
		return "", exit.With(exit.NotFound, hint.With(fmt.Errorf("run %q: %w", name, exec.ErrNotFound), "to run the file of this name, type ./"+name))
	case errors.Is(err, fs.ErrPermission):
		return "", exit.With(exit.NotExecutable, fmt.Errorf("run %q: %w", name, syscall.EACCES))
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", exit.With(exit.NotFound, fmt.Errorf("run %q: no such program", name))
	}
	return "", exit.With(exit.NotExecutable, fmt.Errorf("run %q: %w", name, errors.Unwrap(err)))
}

// exitOf returns the exit status of a command whose Wait returned err.
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

// inheritedFiles returns the files beyond standard error that this process inherited, such as
// those of a make jobserver or of systemd's socket activation, in the order of ExtraFiles.
func inheritedFiles() []*os.File {
	const limit = 256 // the kernel passes on higher ones by itself
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil // without /proc they are unknown
	}
	var files []*os.File
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 || fd >= limit {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // opened by this process
		}
		for len(files) < fd-2 {
			files = append(files, nil)
		}
		files[fd-3] = os.NewFile(uintptr(fd), "inherited")
	}
	return files
}

// closeInherited closes the files that the command has as well. If this process kept the write
// end of a pipe open, its reader would wait for the end of this process.
func closeInherited(inherited []*os.File) {
	for _, f := range inherited {
		if f != nil {
			f.Close()
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return // readers of standard output wait longer, no more
	}
	defer null.Close()
	for fd := range 2 {
		unix.Dup3(int(null.Fd()), fd, 0) // on failure, the old file stays open
	}
}
