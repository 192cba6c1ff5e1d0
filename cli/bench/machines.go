package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"cleat/bench"
	"cleat/bench/catalog"
	"cleat/bench/experiment"
	"cleat/bench/remote"
	"cleat/bench/remote/agent"
	"cleat/cli/complete"
	"cleat/cli/hint"
	"cleat/lab"
	"cleat/netns"

	"github.com/spf13/cobra"
)

// remoteFlags say between which machines to measure.
type remoteFlags struct {
	nodes   []string
	devices []string
	ssh     string
}

// define adds the flags of a command that measures an experiment.
func (r *remoteFlags) define(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&r.nodes, "node", nil, "measure between machines: give `ssh://USER@HOST` twice or more; the first with each other one")
	complete.Words(cmd, "node", "ssh://")
	r.defineReach(cmd)
}

// defineReach adds the flags that say how to reach machines.
func (r *remoteFlags) defineReach(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&r.devices, "device", nil, "measure over the `DEVICE` of each machine, separated by commas in the order of the machines; macvlan, ipvlan and VLAN need it")
	flags.StringVar(&r.ssh, "ssh", "ssh", "connect with `PROGRAM`, which may have arguments, e.g. \"ssh -F lab.conf\"")
}

// check rejects flags that do not go together.
func (r *remoteFlags) check(cmd *cobra.Command) error {
	set := cmd.Flags().Changed
	switch {
	case len(r.nodes) == 0:
		for _, name := range []string{"device", "ssh"} {
			if set(name) {
				return hint.Usagef("--%s is for other machines, and none is given", name)
			}
		}
		return nil
	case len(r.nodes) == 1:
		return hint.With(hint.Usagef("--node %s: one machine has no path to measure", r.nodes[0]), "give --node twice or more")
	}
	for _, name := range []string{"lab", "mtu", "link-rate", "runtime", "links"} {
		if set(name) {
			return hint.Usagef("--%s is for networks that this machine makes: it has no meaning with --node", name)
		}
	}
	_, err := r.addresses()
	return err
}

// addresses returns the machines' addresses.
func (r *remoteFlags) addresses() ([]remote.Address, error) {
	var out []remote.Address
	seen := map[remote.Address]bool{}
	for _, text := range r.nodes {
		a, err := remote.ParseAddress(text)
		if err != nil {
			return nil, hint.With(hint.Usage(err), "e.g. --node ssh://root@db1 --node ssh://root@db2:2222")
		}
		if seen[a] {
			return nil, hint.Usagef("node %s is given twice", a)
		}
		seen[a] = true
		out = append(out, a)
	}
	if n := len(r.devices); n > 0 && n != len(out) {
		return nil, hint.Usagef("--device has %d names for %d machines: give one for each, in their order", n, len(out))
	}
	if strings.TrimSpace(r.ssh) == "" {
		return nil, hint.Usagef("--ssh needs a value")
	}
	return out, nil
}

// dial connects to all machines, one after the other, since each may ask on the terminal.
// The function closes them, and reports what did not end in order.
func (r *remoteFlags) dial(ctx context.Context, root bool, say io.Writer) (all []bench.Machine, closeAll func() error, err error) {
	addresses, err := r.addresses()
	if err != nil {
		return nil, nil, err
	}
	closeAll = func() error {
		var errs []error
		for _, m := range all {
			if err := m.Err(); err != nil {
				errs = append(errs, err)
				continue
			}
			errs = append(errs, m.Close())
		}
		return errors.Join(errs...)
	}
	for i, a := range addresses {
		fmt.Fprintf(say, "connecting to %s\n", a)
		node, err := remote.Dial(ctx, a, remote.Options{SSH: strings.Fields(r.ssh), Root: root})
		if err != nil {
			return nil, nil, errors.Join(withRemoteHint(err), closeAll())
		}
		m := bench.Machine{Node: node}
		if len(r.devices) > 0 {
			m.Device = r.devices[i]
		}
		all = append(all, m)
	}
	return all, closeAll, nil
}

// withRemoteHint adds what to type to an error of a connection.
func withRemoteHint(err error) error {
	var refused *remote.Refused
	var ssh *remote.SSHError
	switch {
	case errors.As(err, &refused) && refused.Remedy != "":
		return hint.With(err, refused.Remedy)
	case errors.As(err, &ssh) && ssh.Hint() != "":
		return hint.With(err, ssh.Hint())
	}
	return err
}

// needsRoot reports whether an experiment builds networks.
func needsRoot(e experiment.Experiment) bool {
	for _, n := range e.Networks() {
		if catalog.RoleOf(n) != catalog.Existing {
			return true
		}
	}
	return false
}

// betweenMachines runs an experiment between machines.
func (f *flags) betweenMachines(ctx context.Context, e experiment.Experiment) (err error) {
	say := io.Writer(os.Stderr)
	if f.quiet {
		say = io.Discard
	}
	all, closeAll, err := f.remote.dial(ctx, needsRoot(e), say)
	if err != nil {
		return err
	}
	defer func() {
		closeErr := closeAll()
		if !errors.As(err, new(*remote.Lost)) { // else it says so already
			err = errors.Join(err, closeErr)
		}
	}()
	m, err := bench.NewMachines(ctx, all, e.Networks())
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "cleat-bench-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer os.RemoveAll(scratch)
	e.Between = m.Pairs()
	return f.carryOut(ctx, e, scratch, m.Possible, func(cfg bench.Config) error { return bench.RunBetween(ctx, cfg, m) })
}

// listBetweenMachines returns which networks can be measured between machines.
func (r *remoteFlags) listBetweenMachines(ctx context.Context) (_ []listed, err error) {
	all, closeAll, err := r.dial(ctx, true, io.Discard)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	m, err := bench.NewMachines(ctx, all, experiment.NetworkNames())
	if err != nil {
		return nil, err
	}
	return listNetworks(m.Check), nil
}

// existingBetweenMachines measures the path that joins two machines.
func (f *flags) existingBetweenMachines(cmd *cobra.Command, args []string) error {
	if cmd.Flags().Changed("address") {
		return hint.Usagef("--address is for namespaces: choose the path between machines with --device")
	}
	f.remote.nodes = args
	if err := f.remote.check(cmd); err != nil {
		return err
	}
	e, err := f.existing(cmd)
	if err == nil {
		err = f.chooseDir("between")
	}
	if err != nil {
		return err
	}
	return f.betweenMachines(cmd.Context(), e)
}

// hostNamespaceFD is the descriptor of the machine's network namespace in the agent's lab.
const hostNamespaceFD = lab.FirstExtraFD

// newNode returns the command node, which package remote runs on another machine.
func newNode() *cobra.Command {
	return &cobra.Command{
		Use:    "node DIR",
		Short:  "be an agent for cleat bench on another machine, in its directory DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := agent.Config{In: os.Stdin, Out: os.Stdout}
			flavour, inside := lab.Inside()
			switch {
			case !inside:
				return enterAsAgent(cmd.Context(), args[0])
			case flavour == lab.None:
				// The program runs without its file, and the directory is for sockets.
				if err := os.Remove(programFile(args[0])); err != nil {
					return err
				}
				defer removeSockets(args[0])
				cfg.Scratch = args[0]
			default:
				var err error
				if cfg.Scratch, err = lab.Settle(); err != nil {
					return err
				}
				if cfg.Host, err = netns.OpenAs(fmt.Sprintf("/proc/self/fd/%d", hostNamespaceFD), "the machine"); err != nil {
					return err
				}
				defer cfg.Host.Close()
			}
			return agent.Serve(cmd.Context(), cfg)
		},
	}
}

// enterAsAgent removes the program's directory, and runs the agent in a lab that is told
// about the machine's network namespace.
func enterAsAgent(ctx context.Context, dir string) error {
	if err := errors.Join(os.Remove(programFile(dir)), os.Remove(dir)); err != nil {
		return err
	}
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	return enterLab(ctx, lab.Config{Flavour: lab.Root, Extra: []*os.File{ns.File()}})
}

// programFile returns the path of this program in its directory.
func programFile(dir string) string { return filepath.Join(dir, "cleat") }

// removeSockets removes the directory of an agent without root, and the sockets in it. The
// shell that started the agent does so as well, should the agent be killed.
func removeSockets(dir string) {
	sockets, _ := filepath.Glob(filepath.Join(dir, "*.sock")) // the pattern is valid
	for _, s := range append(sockets, dir) {
		os.Remove(s)
	}
}
