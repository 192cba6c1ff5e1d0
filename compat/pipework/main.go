package pipework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"cleat/compat/journal"
	"cleat/internal/columns"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
)

// name is the program's, in messages.
const name = "pipework"

// Host is what the program needs of where it runs.
type Host struct {
	Open func() (attach.Config, error) // where attachments are kept, and how containers are found
	Keep func(*attach.Store) error     // has somebody extend leases
}

// Main is the whole program: args are those after its name, version is what
// --version shows, and host is what it takes to attach. It returns the exit code: the
// script's 1 for anything wrong, 2 for what the script does and this does not, 128 and
// the number of a signal that ended it.
func Main(args []string, version string, host Host) int {
	o, err := Parse(args)
	switch {
	case err != nil:
		return complain(err)
	case o.Help:
		printHelp(os.Stdout)
		return 0
	case o.Version:
		fmt.Printf("%s (cleat) %s\n", name, version)
		return 0
	}
	ctx, stop := interruptible()
	defer stop()
	err = o.do(ctx, host)
	var by endedBy
	if err != nil && errors.As(context.Cause(ctx), &by) {
		return 128 + int(by)
	}
	if err != nil {
		return complain(explain(err, o))
	}
	return 0
}

func (o Options) do(ctx context.Context, host Host) error {
	if o.Wait {
		here, err := netns.Current()
		if err != nil {
			return err
		}
		defer here.Close()
		return waitUp(ctx, here, o.Link)
	}
	cfg, err := host.Open()
	if err != nil {
		return err
	}
	if o.Tool != nil {
		return become(ctx, cfg, o.Guest, o.Tool)
	}
	return o.attach(ctx, cfg, host)
}

// attach does what is meant, whole or not at all.
func (o Options) attach(ctx context.Context, cfg attach.Config, host Host) error {
	here, err := netns.Current()
	if err != nil {
		return err
	}
	defer here.Close()
	devices, err := hostDevices(here)
	if err != nil {
		return err
	}
	p, err := o.Plan(devices)
	if err != nil {
		return err
	}
	lower, err := raise(here, p.Raise)
	if err != nil {
		return err
	}
	got, err := attach.Attach(ctx, cfg, o.Guest, p.Spec)
	if err != nil {
		return errors.Join(err, lower())
	}
	if p.Raise != "" {
		p.Notes = append(p.Notes, p.Raise+" was down, and is up now")
	}
	if got.Attachment.NeedsKeeper() {
		if err := host.Keep(cfg.Store); err != nil {
			p.note(fmt.Sprintf("nobody extends its lease, `cleat keep` would: %v", err))
		}
	}
	tell(append(p.Notes, got.Notes...))
	return nil
}

// raise brings a device of the host's up, and returns what brings it down again.
// "" is none.
func raise(here *netns.NS, device string) (lower func() error, err error) {
	if device == "" {
		return func() error { return nil }, nil
	}
	l, err := link.Find(here, device)
	if err != nil {
		return nil, err
	}
	return l.Down, l.Up()
}

// tell says what has to be known.
func tell(notes []string) {
	for _, n := range notes {
		fmt.Fprintf(os.Stderr, "%s: note: %s\n", name, columns.Plain(n))
	}
}

// endedBy is the signal that ended a context.
type endedBy syscall.Signal

func (s endedBy) Error() string { return syscall.Signal(s).String() }

// interruptible is a context that the first SIGINT or SIGTERM ends, with endedBy as
// its cause; a second one has its default action.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		select {
		case s := <-caught:
			signal.Stop(caught)
			cancel(endedBy(s.(syscall.Signal)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(caught); cancel(nil) }
}

// complain prints an error, with what to do about it, and returns the exit code.
func complain(err error) int {
	fmt.Fprint(os.Stderr, journal.Describe(name, err))
	var e *Error
	if errors.As(err, &e) && e.lacking {
		return 2
	}
	return 1
}
