package bench

import (
	"fmt"
	"net/netip"
	"os"

	"cleat/bench"
	"cleat/bench/experiment"
	"cleat/bench/remote"
	"cleat/cli/container"
	"cleat/cli/hint"
	"cleat/lab"
	"cleat/netns"

	"github.com/spf13/cobra"
)

func newBetween() *cobra.Command {
	f := flags{lab: "root"}
	var address string
	cmd := &cobra.Command{
		Use:   "between A B",
		Short: "measure the path between two containers or namespaces",
		Long: `Measures TCP and request/response from namespace A to namespace B and back,
over whatever joins them, without changing it. A and B are containers (web, or
podman:web if several engines have one), process ids, names under /run/netns, or
paths. Entering them needs root. A server listens in each during the
measurement.

A and B may also be two machines, ssh://USER@HOST. That needs no root.`,
		Example: `  sudo cleat bench between 4242 4711
  sudo cleat bench between blue /proc/4711/ns/net --repeat 20
  sudo cleat bench between web 1
  sudo cleat bench between docker:web podman:db
  cleat bench between ssh://me@db1 ssh://me@db2:2222`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return hint.With(hint.Usagef("want two containers or namespaces, not %d", len(args)), "e.g. `cleat bench between web db`")
			}
			return nil
		},
		ValidArgsFunction: container.CompleteTwo,
		RunE: func(cmd *cobra.Command, args []string) error {
			var to netip.Addr
			if cmd.Flags().Changed("address") {
				var err error
				if to, err = netip.ParseAddr(address); err != nil {
					return hint.Usagef("--address %q: want an IP address", address)
				}
			}
			f.version = cmd.Root().Version
			if remote.IsAddress(args[0]) || remote.IsAddress(args[1]) {
				return f.existingBetweenMachines(cmd, args)
			}
			if err := f.remote.check(cmd); err != nil {
				return err
			}
			if _, inside := lab.Inside(); !inside {
				return f.enterBetween(cmd, args)
			}
			return f.between(cmd, args, to)
		},
	}
	flags := cmd.Flags()
	f.defineShared(cmd)
	f.remote.defineReach(cmd)
	flags.StringVar(&address, "address", "", "reach B at `ADDRESS` from A (default: the first that answers)")
	flags.StringVar(&f.out, "out", "", "write the results to `DIR`, which must not hold any yet (default: cleat-bench-between-TIME)")
	return cmd
}

// firstNamespaceFD is the descriptor of A in the copy in the lab; B's follows.
const firstNamespaceFD = lab.FirstExtraFD

// enterBetween opens the namespaces before it enters a lab, where their names have no
// meaning, and passes them to a copy in its own PID namespace, so that no server outlives
// the measurement.
func (f *flags) enterBetween(cmd *cobra.Command, args []string) error {
	if _, err := f.existing(cmd); err != nil {
		return err
	}
	var files []*os.File
	var ids []uint64
	for _, ref := range args {
		ns, err := container.Namespace(cmd.Context(), ref)
		if err != nil {
			return err
		}
		defer ns.Close()
		id, err := ns.ID()
		if err != nil {
			return err
		}
		ids, files = append(ids, id), append(files, ns.File())
	}
	if ids[0] == ids[1] {
		return hint.With(hint.Usagef("%s and %s have the same network: there is no path between them", args[0], args[1]), "give two with different networks; `cleat ls` and `cleat graph` show them")
	}
	if err := f.chooseDir("between"); err != nil {
		return err
	}
	return enterLab(cmd.Context(), lab.Config{Flavour: lab.Root, Env: f.env(), Extra: files})
}

// existing returns the experiment with the flags applied.
func (f *flags) existing(cmd *cobra.Command) (experiment.Experiment, error) {
	e := bench.ExistingPath().Override(f.Override)
	if err := f.given(cmd); err != nil {
		return e, err
	}
	if err := e.ValidateExisting(); err != nil {
		return e, err
	}
	return e, findEngines(e)
}

func (f *flags) between(cmd *cobra.Command, args []string, to netip.Addr) error {
	scratch, err := lab.Settle()
	if err != nil {
		return err
	}
	var ends [2]*netns.NS
	for i := range ends {
		if ends[i], err = netns.OpenAs(fmt.Sprintf("/proc/self/fd/%d", firstNamespaceFD+i), args[i]); err != nil {
			return err
		}
		defer ends[i].Close()
	}
	e, err := f.existing(cmd)
	if err == nil {
		err = f.chooseDir("between")
	}
	if err != nil {
		return err
	}
	return f.carryOut(cmd.Context(), e, scratch, bench.Possible(), func(cfg bench.Config) error {
		return bench.Between(cmd.Context(), cfg, ends[0], ends[1], to)
	})
}
