package slirp4netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"

	"cleat/compat/getopt"
	"cleat/compat/journal"
	"cleat/sandbox"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const name = "slirp4netns"

// Main runs the program. args are the arguments after its name, and version is printed by
// --version. It returns the exit code.
func Main(args []string, version string) int {
	o, err := Parse(args)
	usage := new(getopt.Error)
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		printHelp(os.Stderr)
		return 1
	case err != nil:
		return complain(err)
	case o.Help:
		printHelp(os.Stdout)
		return 0
	case o.Version:
		fmt.Printf("%s version %s\ncleat: in slirp4netns' place\n", name, version)
		return 0
	}
	if err := o.carry(); err != nil {
		return complain(err)
	}
	return 0
}

func complain(err error) int {
	fmt.Fprint(os.Stderr, journal.Describe(name, err))
	return 1
}

// carry creates the network and carries its traffic until the namespace is gone, the exit
// descriptor hangs up, or a signal arrives.
func (o Options) carry() error {
	log := journal.New(os.Stderr, name, slog.LevelInfo)
	plan, err := o.Plan(AddressOf)
	if err != nil {
		return err
	}
	for _, text := range plan.Notices {
		log.Warnf("%s", text)
	}
	plan.Config.Log = log.Logger()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	defer stop()
	ready, err := inherited("ready-fd", o.ReadyFD)
	if err != nil {
		return err
	}
	exit, err := inherited("exit-fd", o.ExitFD)
	if err != nil {
		return err
	}
	n, err := plan.network(ctx)
	if err != nil {
		return err
	}
	defer n.Close()
	var requests *net.UnixListener
	if o.APISocket != "" {
		if requests, err = listen(o.APISocket); err != nil {
			return fmt.Errorf("--api-socket: %w", err)
		}
		defer requests.Close()
	}
	o.tell(log, plan.Config)
	if err := sandbox.Seal(sandbox.SealConfig{}); err != nil {
		return fmt.Errorf("give up rights: %w", err)
	}
	if ready != nil {
		ready.WriteString("1") // an error means that the reader is gone
		ready.Close()
	}
	var works errgroup.Group
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := func(work func() error) { // the first that ends ends the others, and only its result counts
		works.Go(func() error {
			err := work()
			if ctx.Err() != nil {
				return nil
			}
			cancel()
			return err
		})
	}
	start(func() error { return n.Run(ctx) })
	if requests != nil {
		a := &api{ports: n, guest: plan.Config.Addr4.Addr()}
		start(func() error { return a.serve(ctx, requests) })
	}
	if exit != nil {
		start(func() error { return hangUp(ctx, exit) })
	}
	return works.Wait()
}

// network creates the planned network, ready to carry traffic.
func (p Plan) network(ctx context.Context) (*sandbox.Network, error) {
	n, err := sandbox.New(p.Config)
	if err != nil {
		return nil, err
	}
	if err = n.Join(ctx, p.Namespace); err == nil {
		err = n.Prepare(ctx)
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// inherited returns the file of an inherited descriptor, or nil if fd is negative.
func inherited(option string, fd int) (*os.File, error) {
	if fd < 0 {
		return nil, nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return nil, fmt.Errorf("--%s %d: %w", option, fd, err)
	}
	unix.CloseOnExec(fd)
	if option == "exit-fd" { // the runtime's poller waits for it
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("--%s %d: %w", option, fd, err)
		}
	}
	return os.NewFile(uintptr(fd), option), nil
}

// hangUp returns when the other end of f is closed. A regular file never hangs up.
func hangUp(ctx context.Context, f *os.File) error {
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	io.Copy(io.Discard, f) // any end counts
	return nil
}

func (o Options) tell(log *journal.Journal, c sandbox.Config) {
	log.Infof("network %s, device %s (a TUN), MTU %d", o.CIDR, c.Interface, c.MTU)
	log.Infof("guest %s, gateway %s", c.Addr4.Addr(), c.Gateway4)
	if !c.DNS.Off {
		log.Infof("resolver %v", c.DNS.Listen)
	}
	if c.HostLoopback4.IsValid() {
		log.Infof("%s leads to the host's 127.0.0.1: --disable-host-loopback prevents it", c.HostLoopback4)
	}
}

// printHelp prints the usage. RootlessKit searches it for options.
func printHelp(w io.Writer) {
	fmt.Fprint(w, `Usage: slirp4netns [OPTION]... PID|PATH [TAPNAME]

Gives a network namespace a network, without root. This is cleat in place of
slirp4netns.

`)
	table().WriteHelp(w)
}
