package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"cleat/cli/complete"
	"cleat/cli/exit"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/link"
	"cleat/tunnel"
	"cleat/tunnel/control"
	"cleat/tunnel/endpoint"
	"cleat/tunnel/spec"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newUp() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "up FILE",
		Short: "run one end of a tunnel until it is interrupted",
		Long: `Makes the device that a tunnel file describes and carries its packets over all
paths, until it is interrupted. The other host runs the other end. Addresses and
routes go with the device, however the command ends.

It needs root, or CAP_NET_ADMIN and /dev/net/tun; in a container that is
  docker run --cap-add NET_ADMIN --device /dev/net/tun …
SIGHUP has the file read again, as "cleat tunnel reload" does.`,
		Example: `  cleat tunnel up office.yaml
  cleat tunnel up --wait 5s office.yaml
  docker run --network host --cap-add NET_ADMIN --device /dev/net/tun \
    -v /etc/cleat:/etc/cleat cleat tunnel up /etc/cleat/office.yaml`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 {
				return hint.Usagef("--wait %s: want 0 or more", wait)
			}
			u := &up{name: args[0], in: cmd.InOrStdin(), errs: cmd.ErrOrStderr(), version: cmd.Root().Version, wait: wait}
			return u.run(cmd.Context())
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "fail if the peer has not answered after `DURATION`; 0 waits forever")
	complete.Words(cmd, "wait")
	return cmd
}

// engineThreads is how many threads package tunnel keeps busy. Without processors to spare
// the Go runtime's monitor takes theirs away whenever they wait, and looks for that every
// 20 µs: a fifth of the processor time on two cores.
const engineThreads = 2

// otherThreads are those for control, timers and the garbage collector.
const otherThreads = 3

// up is a running `cleat tunnel up`. It is what `cleat tunnel status` and the others
// ask and tell: a control.Target.
type up struct {
	name    string // of the file
	in      io.Reader
	errs    io.Writer
	wait    time.Duration
	version string

	*printer
	reloading   sync.Mutex // one reading of the file after the other
	established chan struct{}
	once        sync.Once
	began       time.Time
	path        string // of the file, absolute; "": standard input, or nobody knows
	sysctls     *os.File
	sealed      control.Sealed
	stop        context.CancelCauseFunc
	*endpoint.Endpoint
}

// drainTimeout is how long whoever reads what is said has for the last of it.
const drainTimeout = time.Second

func (u *up) run(ctx context.Context) error {
	signal.Ignore(syscall.SIGPIPE) // the tunnel does not end with who reads what it says
	u.printer = newPrinter()
	go u.write(u.errs)
	defer u.end(drainTimeout)
	file, err := u.read()
	if err != nil {
		return err
	}
	listener, err := control.Listen(file.Tunnel.Name)
	if err != nil {
		return upError(file.Tunnel, err)
	}
	defer listener.Close()
	u.established, u.began = make(chan struct{}), time.Now()
	u.Endpoint, err = endpoint.New(file.Tunnel, u.tell)
	if err != nil {
		return upError(file.Tunnel, err)
	}
	defer u.Close()
	metrics, err := control.ListenMetrics(file.Tunnel.Metrics)
	if err != nil {
		return err
	}
	ctx, u.stop = context.WithCancelCause(ctx)
	defer u.stop(nil)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), engineThreads+otherThreads))
	u.seal(file.Tunnel)
	u.say("tunnel %s: device %s, %s", file.Tunnel.Name, file.Tunnel.Device, term.Count(len(file.Tunnel.Paths), "path"))
	if file.Tunnel.Key == nil {
		u.say("tunnel %s has no key: nothing is encrypted or authenticated; use it in trusted networks only", file.Tunnel.Name)
	}
	return u.serve(ctx, listener, metrics)
}

// errStopped says that somebody asked the tunnel to end.
var errStopped = errors.New("stopped")

// serve carries packets and answers questions until ctx ends. metrics is nil where they
// are asked for at l alone.
func (u *up) serve(ctx context.Context, l *net.UnixListener, metrics net.Listener) error {
	var others sync.WaitGroup
	serving := func(what string, serve func() error) {
		others.Go(func() {
			if err := serve(); err != nil {
				u.stop(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	serving("answer at the control socket", func() error { return control.Serve(ctx, l, u) })
	if metrics != nil {
		serving("serve metrics", func() error { return control.ServeMetrics(ctx, metrics, u) })
	}
	others.Go(func() { u.rereads(ctx) })
	if u.wait > 0 {
		others.Go(func() { u.limit(ctx) })
	}
	err := u.Run(ctx)
	u.stop(err)
	others.Wait()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, errStopped) && !errors.As(cause, new(exit.Signalled)) {
		return cause
	}
	return err
}

// Info implements control.Target.
func (u *up) Info() control.Info {
	s := u.Spec()
	return control.Info{
		Name: s.Name, Device: s.Device, File: u.path, PID: os.Getpid(), Started: u.began,
		Form: s.Form, Scheduler: s.Scheduler, Version: u.version, Sealed: u.sealed,
	}
}

// AddPath implements control.Target.
func (u *up) AddPath(p spec.Path) error {
	now := u.Spec()
	if now.Path(p.Name) != nil {
		return fmt.Errorf("add path %q: %w", p.Name, tunnel.ErrPathExists)
	}
	p, err := now.CheckPath(p)
	if err != nil {
		return err
	}
	return u.Endpoint.AddPath(p)
}

// Stop implements control.Target.
func (u *up) Stop() { u.stop(errStopped) }

// Reload implements control.Target.
func (u *up) Reload() (control.Reloaded, error) {
	changes, err := u.reload()
	return control.Describe(changes), err
}

// own is the device of the tunnel if it runs.
func (u *up) own() string {
	if u.Endpoint == nil {
		return ""
	}
	return u.Spec().Device
}

// read reads the file and prints what there is to say about it.
func (u *up) read() (*spec.File, error) {
	file, err := readFile(u.name, u.in, u.own())
	if err != nil {
		return nil, err
	}
	for _, f := range file.Findings {
		u.say("%s", f)
	}
	return file, mistakes(file.Findings)
}

// happenings are the news that people are told, and in which words: of a path behind "path
// NAME is", of the tunnel alone.
var happenings = map[tunnel.EventKind]string{
	tunnel.Established: "the other end has answered",
	tunnel.Restarted:   "the other end has begun anew",
	tunnel.Expired:     "no new keys have been agreed on for too long: nothing is sent until the other end answers",
	tunnel.Mismatched:  "the other end can't be understood",
	tunnel.FellBack:    "nobody answers in the form native: it is compat from now on",
	tunnel.PathLive:    "in use",
	tunnel.PathDead:    "dead: its packets go over the others",
	tunnel.PathGone:    "not usable now",
	tunnel.Resized:     "of another MTU",
	tunnel.Restricted:  "not all is as it should be",
}

// tell says what happens to the tunnel. The engine, whose lock is held, does not wait.
func (u *up) tell(e tunnel.Event) {
	what := happenings[e.Kind]
	if e.Kind == tunnel.Established {
		u.once.Do(func() { close(u.established) })
	}
	if e.Path != "" {
		what = "path " + e.Path + " is " + what
	}
	if e.Err != nil {
		what += ": " + e.Err.Error()
	}
	u.say("%s  %s", time.Now().Format(time.TimeOnly), columns.Plain(what))
}

// lateError says that the other end has not answered in time.
type lateError struct{ after time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("the other end has not answered after %s", e.after)
}

// Hint says what to look at.
func (e *lateError) Hint() string {
	return "look there whether `cleat tunnel up` runs, whether a firewall lets UDP through, and whether the keys are each other's"
}

// limit ends the command when there is no answer in time.
func (u *up) limit(ctx context.Context) {
	select {
	case <-u.established:
	case <-ctx.Done():
	case <-time.After(u.wait):
		u.stop(&lateError{u.wait})
	}
}

// rereads reads the file again at each SIGHUP.
func (u *up) rereads(ctx context.Context) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			u.rereadNow()
		}
	}
}

// rereadNow reads the file again for somebody who gets no answer, and says what came of it.
func (u *up) rereadNow() {
	changes, err := u.reload()
	if err != nil {
		u.say("the tunnel stays as it was: %v", err)
		return
	}
	did := control.Describe(changes)
	for _, s := range did.Changed {
		u.say("%s", columns.Plain(s))
	}
	if changes.IsEmpty() {
		u.say("nothing has changed in %s", u.name)
	}
}

// reload does what a changed file asks for, and returns what that was.
func (u *up) reload() (spec.Changes, error) {
	if u.name == "-" {
		return spec.Changes{}, hint.With(errors.New("the tunnel's file was standard input: it can't be read again"), "start the tunnel with a file's name")
	}
	u.reloading.Lock()
	defer u.reloading.Unlock()
	file, err := u.read()
	if err != nil {
		if file != nil {
			err = &control.FileError{Findings: file.Findings}
		}
		return spec.Changes{}, sealedError(err)
	}
	changes := spec.Compare(u.Spec(), file.Tunnel)
	for _, r := range changes.Refused {
		u.say("%s", r)
	}
	return changes, u.Apply(changes)
}

// tunDevice is what a tunnel's device is made with.
const tunDevice = "/dev/net/tun"

// upError adds a hint to why a device can't be had.
func upError(t *spec.Tunnel, err error) error {
	var lack *link.Lack
	var file *fs.PathError
	switch {
	case errors.As(err, &file) && file.Path == tunDevice:
		return hint.With(err, "on a host: modprobe tun; in a container: --device "+tunDevice)
	case errors.Is(err, control.ErrTaken):
		return hint.With(err, "see `cleat tunnel status "+t.Name+"`, or end it with `cleat tunnel down "+t.Name+"`")
	case errors.Is(err, endpoint.ErrNoIPv6):
		return hint.With(err, "sysctl -w net.ipv6.conf.default.disable_ipv6=0, in a container as\n  docker run --sysctl net.ipv6.conf.default.disable_ipv6=0 …\nor leave the IPv6 addresses out")
	case errors.Is(err, link.ErrExists):
		return hint.With(err, fmt.Sprintf("a tunnel may be running already: see `cleat tunnel status`, or choose another name with `device:` (%s is taken)", t.Device))
	case errors.As(err, &lack) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EPERM):
		return hint.With(err, "run it as root, or in a container with --cap-add NET_ADMIN --device /dev/net/tun")
	}
	return err
}
