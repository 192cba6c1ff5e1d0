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
		Short: "run one end of a tunnel",
		Long: `Creates the device that a tunnel file describes and carries its packets over all
paths, until the command is interrupted. The other host runs the other end. When
the command ends, even by SIGKILL, the device is removed with its addresses and
routes.

It needs root, or CAP_NET_ADMIN and /dev/net/tun; in a container:
  docker run --cap-add NET_ADMIN --device /dev/net/tun …
On SIGHUP it reads the file again, as for "cleat tunnel reload".`,
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

// engineThreads is how many threads package tunnel keeps busy. If GOMAXPROCS leaves none to
// spare, the Go runtime's monitor takes their processors away whenever they wait, and looks
// every 20 µs: a fifth of the processor time on two cores.
const engineThreads = 2

// otherThreads are those for control, timers and the garbage collector.
const otherThreads = 3

// up is a running `cleat tunnel up`. It is the control.Target of the other commands.
type up struct {
	name    string // of the file
	in      io.Reader
	errs    io.Writer
	wait    time.Duration
	version string

	messages    *term.LineQueue // so that the tunnel goes on even if nobody reads them
	reloading   sync.Mutex      // serializes reloads
	established chan struct{}
	once        sync.Once
	began       time.Time
	path        string // of the file, absolute; "": standard input, or unknown
	sysctls     *os.File
	sealed      control.Sealed
	stop        context.CancelCauseFunc
	*endpoint.Endpoint
}

// maxMessages is how many messages may wait to be read: enough for each path of a tunnel to
// die and return a few times.
const maxMessages = 512

func newMessages(w io.Writer) *term.LineQueue {
	return term.NewLineQueue(w, maxMessages, func(dropped int) []byte {
		return fmt.Appendf(nil, "(%s dropped: not read in time)\n", term.Count(dropped, "line"))
	})
}

// printf prints a line. It returns at once.
func (u *up) printf(format string, args ...any) {
	u.messages.Put(append(fmt.Appendf(nil, format, args...), '\n'))
}

// drainTimeout is how long the command waits at its end for messages to be read.
const drainTimeout = time.Second

func (u *up) run(ctx context.Context) error {
	signal.Ignore(syscall.SIGPIPE) // the tunnel goes on if the reader of its messages ends
	u.messages = newMessages(u.errs)
	defer u.messages.Close(drainTimeout)
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
	u.Endpoint, err = endpoint.New(file.Tunnel, u.printEvent)
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
	u.printf("tunnel %s: device %s, %s", file.Tunnel.Name, file.Tunnel.Device, term.Count(len(file.Tunnel.Paths), "path"))
	if file.Tunnel.Key == nil {
		u.printf("tunnel %s has no key: nothing is encrypted or authenticated; use it in trusted networks only", file.Tunnel.Name)
	}
	return u.serve(ctx, listener, metrics)
}

// errStopped is the cause of an end by `cleat tunnel down`.
var errStopped = errors.New("stopped")

// serve carries packets and serves control requests until ctx ends. metrics is nil if
// they are served at l only.
func (u *up) serve(ctx context.Context, l *net.UnixListener, metrics net.Listener) error {
	var others sync.WaitGroup
	serving := func(what string, serve func() error) {
		others.Go(func() {
			if err := serve(); err != nil {
				u.stop(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	serving("serve the control socket", func() error { return control.Serve(ctx, l, u) })
	if metrics != nil {
		serving("serve metrics", func() error { return control.ServeMetrics(ctx, metrics, u) })
	}
	others.Go(func() { u.reloadOnSIGHUP(ctx) })
	if u.wait > 0 {
		others.Go(func() { u.waitForPeer(ctx) })
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

// read reads and checks the file, and prints the findings.
func (u *up) read() (*spec.File, error) {
	ownDevice := ""
	if u.Endpoint != nil {
		ownDevice = u.Spec().Device
	}
	file, err := readFile(u.name, u.in, ownDevice)
	if err != nil {
		return nil, err
	}
	for _, f := range file.Findings {
		u.printf("%s", f)
	}
	return file, mistakes(file.Findings)
}

// eventTexts are the messages for events. Those about a path follow "path NAME".
var eventTexts = map[tunnel.EventKind]string{
	tunnel.Established: "the other end has answered",
	tunnel.Restarted:   "the other end has started a new session",
	tunnel.Expired:     "the keys have expired: nothing is sent until both ends have new ones",
	tunnel.Mismatched:  "incompatible versions",
	tunnel.FellBack:    "no reply to native packets; falling back to compat",
	tunnel.PeerSilent:  "the other end is down",
	tunnel.PeerAnswers: "the other end answers again",
	tunnel.PathLive:    "is in use",
	tunnel.PathDead:    "is dead, its packets are sent on others",
	tunnel.PathTripped: "loses too much: nothing is sent again, and its rate is at the minimum",
	tunnel.PathClosed:  "loses less: what it loses is sent again, and its rate rises",
	tunnel.PathSilent:  "is dead",
	tunnel.PathAnswers: "answers again",
	tunnel.PathLearned: "has found the other end",
	tunnel.PathWaiting: "waits for the other end: nothing has come from its address for long",
	tunnel.PathGone:    "is unavailable",
	tunnel.Resized:     "has a new MTU",
	tunnel.DirectOn:    "packets go directly, in the kernel",
	tunnel.DirectOff:   "packets do not go directly any more",
	tunnel.Restricted:  "warning",
}

// printEvent prints an event. It must not block: the engine calls it with its lock held.
func (u *up) printEvent(e tunnel.Event) {
	text := eventTexts[e.Kind]
	if e.Kind == tunnel.Established {
		u.once.Do(func() { close(u.established) })
	}
	if e.Path != "" {
		text = "path " + e.Path + " " + text
	}
	if e.Remote.IsValid() {
		text += ": " + e.Remote.String()
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	u.printf("%s  %s", time.Now().Format(time.TimeOnly), columns.Plain(text))
}

// waitForPeer ends the command if the other end does not answer in time.
func (u *up) waitForPeer(ctx context.Context) {
	select {
	case <-u.established:
	case <-ctx.Done():
	case <-time.After(u.wait):
		u.stop(hint.With(fmt.Errorf("the other end has not answered after %s", u.wait),
			"check that `cleat tunnel up` runs there, that no firewall blocks UDP, and that each end has the other's public key"))
	}
}

func (u *up) reloadOnSIGHUP(ctx context.Context) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			u.reloadAndPrint()
		}
	}
}

func (u *up) reloadAndPrint() {
	changes, err := u.reload()
	if err != nil {
		u.printf("the file was not applied: %v", err)
		return
	}
	result := control.Describe(changes)
	for _, s := range result.Changed {
		u.printf("%s", columns.Plain(s))
	}
	if changes.IsEmpty() {
		u.printf("nothing has changed in %s", u.name)
	}
}

// reload reads the file again, applies the changes and returns them.
func (u *up) reload() (spec.Changes, error) {
	if u.name == "-" {
		return spec.Changes{}, hint.With(errors.New("the tunnel file was standard input, which can't be read again"), "start the tunnel with the name of a file")
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
		u.printf("%s", r)
	}
	return changes, u.Apply(changes)
}

const tunDevice = "/dev/net/tun"

// upError adds a hint to an error about creating the tunnel.
func upError(t *spec.Tunnel, err error) error {
	var lack *link.Lack
	var file *fs.PathError
	switch {
	case errors.As(err, &file) && file.Path == tunDevice:
		return hint.With(err, "on a host: modprobe tun; in a container: --device "+tunDevice)
	case errors.Is(err, control.ErrTaken):
		return hint.With(err, "see `cleat tunnel status "+t.Name+"`, or end it with `cleat tunnel down "+t.Name+"`")
	case errors.Is(err, endpoint.ErrNoIPv6):
		return hint.With(err, "sysctl -w net.ipv6.conf.default.disable_ipv6=0; in a container:\n  docker run --sysctl net.ipv6.conf.default.disable_ipv6=0 …\nor leave the IPv6 addresses out")
	case errors.Is(err, endpoint.ErrPortTaken):
		return hint.With(err, fmt.Sprintf("a tunnel whose paths have no remote needs a port of its own: choose one with `port:`, here and behind the other end's remotes, e.g. port: %d", t.Port+1))
	case errors.Is(err, link.ErrExists):
		return hint.With(err, fmt.Sprintf("device %s exists: a tunnel may be running, see `cleat tunnel ls`; or choose another name with `device:`", t.Device))
	case errors.As(err, &lack) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EPERM):
		return hint.With(err, "run it as root, or in a container with --cap-add NET_ADMIN --device /dev/net/tun")
	}
	return err
}
