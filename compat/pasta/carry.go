package pasta

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"

	"cleat/compat/journal"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// carry creates the network that the options ask for, and carries its traffic until its
// namespace or its command ends. The result of a command is an exitStatus.
func (o Options) carry(f *files, log *journal.Journal) error {
	host, err := ReadHost(cmp.Or(o.Template, o.OutLink4), cmp.Or(o.Template, o.OutLink6))
	if err != nil {
		return err
	}
	plan, err := o.Plan(host)
	if err != nil {
		return err
	}
	for _, text := range plan.Notices {
		log.Infof("%s", text)
	}
	plan.Config.Log = log.Logger()
	if f.pcap != nil {
		plan.Config.Pcap = f.pcap
	}
	n, err := sandbox.New(plan.Config)
	if err != nil {
		return err
	}
	defer n.Close()
	if o.Attaches() {
		return o.attach(n, plan, f, log)
	}
	return o.spawn(n, plan, f)
}

// attach serves an existing namespace. A termination signal is not an error.
func (o Options) attach(n *sandbox.Network, plan Plan, f *files, log *journal.Journal) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	defer stop()
	ns := plan.Namespace
	if ns.Path != "" {
		path, err := filepath.Abs(ns.Path) // the process will change its directory
		if err != nil {
			return err
		}
		ns.Path = path
	}
	if err := n.Join(ctx, ns); err != nil {
		return err
	}
	if err := n.Prepare(ctx); err != nil {
		return err
	}
	tell(log, n.Config())
	if err := o.settle(f, log); err != nil {
		return err
	}
	return n.Run(ctx)
}

// settle gives up everything that is not needed to carry traffic, and then reports that
// the network works.
func (o Options) settle(f *files, log *journal.Journal) error {
	if err := f.writePID(); err != nil {
		return err
	}
	if f.log != nil {
		log.ToFile(f.log, cmp.Or(o.LogBytes, usualLog))
	} else if f.ready != nil {
		if err := log.ToSyslog(); err != nil {
			log.Infof("no system log: %v", err)
		}
	}
	if f.ready != nil {
		if err := leave(); err != nil {
			return err
		}
	}
	if err := sandbox.Seal(sandbox.SealConfig{}); err != nil {
		return fmt.Errorf("give up rights: %w", err)
	}
	if f.ready == nil {
		return nil
	}
	_, err := f.ready.WriteString(fine)
	f.ready.Close()
	f.ready = nil
	return err // the process that waited is gone, so there is no use going on
}

// leave gives up the caller's directory and standard streams.
func leave() error {
	if err := os.Chdir("/"); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return fmt.Errorf("close standard streams: %w", err)
		}
	}
	return nil
}

func tell(log *journal.Journal, c sandbox.Config) {
	log.Infof("namespace interface %s, MAC address %s, MTU %d", c.Interface, c.Ethernet.MAC, c.MTU)
	family := func(off bool, addr netip.Prefix, gateway, loopback netip.Addr) {
		switch {
		case off:
		case loopback.IsValid():
			log.Infof("address %s, gateway %s, %s leads to the host's loopback", addr, gateway, loopback)
		default:
			log.Infof("address %s, gateway %s", addr, gateway)
		}
	}
	family(c.NoIPv4, c.Addr4, c.Gateway4, c.HostLoopback4)
	family(c.NoIPv6, c.Addr6, c.Gateway6, c.HostLoopback6)
	for _, m := range c.Mappings {
		log.Infof("%s leads to %s", m.Guest, m.Host)
	}
	if !c.DNS.Off {
		log.Infof("resolver %v", c.DNS.Listen)
	}
}

// spawn runs a command, or a shell, in a network of its own.
func (o Options) spawn(n *sandbox.Network, plan Plan, f *files) error {
	cmd, err := command(plan.Command)
	if err != nil {
		return err
	}
	if err := n.Wrap(cmd); err != nil {
		return err
	}
	signals := catch() // before the process that they are meant for exists
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := o.beginCommand(ctx, n, f, cmd.Process.Pid); err != nil {
		cmd.Process.Kill() // it still waits for the network
		cmd.Wait()
		return err
	}
	go signals.passTo(cmd.Process)
	var carrying sync.WaitGroup
	var broken error
	carrying.Go(func() { broken = n.Run(ctx) })
	err = cmd.Wait()
	cancel()
	carrying.Wait()
	if broken != nil {
		fmt.Fprint(os.Stderr, journal.Describe(name, broken))
	}
	return exitStatus(exitCode(err))
}

// beginCommand opens everything that the network needs, and seals this process, which may
// still signal the command.
func (o Options) beginCommand(ctx context.Context, n *sandbox.Network, f *files, command int) error {
	if err := n.Prepare(ctx); err != nil {
		return err
	}
	if err := f.writePID(); err != nil {
		return err
	}
	if err := sandbox.Seal(sandbox.SealConfig{SignalPID: command}); err != nil {
		return fmt.Errorf("give up rights before the command begins: %w", err)
	}
	return nil
}

// command returns the requested command, or a login shell.
func command(words []string) (*exec.Cmd, error) {
	var cmd *exec.Cmd
	if len(words) == 0 {
		shell := cmp.Or(os.Getenv("SHELL"), "/bin/sh")
		cmd = exec.Command(shell)
		cmd.Args[0] = "-" + filepath.Base(shell)
	} else {
		path, err := exec.LookPath(words[0])
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", words[0], err)
		}
		cmd = exec.Command(path)
		cmd.Args = words
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd, nil
}
