package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"cleat/bench"
	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/remote"
	"cleat/bench/summary"
	"cleat/cli/complete"
	"cleat/cli/exit"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/internal/columns"
	"cleat/lab"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

type flags struct {
	experiment.Override
	out      string
	lab      string
	linkRate string
	only     []string
	quiet    bool
	json     bool
	remote   remoteFlags
	version  string
}

// New returns the command bench.
func New() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "bench PRESET|FILE.yaml",
		Short: "measure container networks against each other",
		Long: `Runs one experiment: builds every network it names inside namespaces of its
own, measures them in randomised blocks, and writes samples, a summary and a
report. It ends with a table and a recommendation. Networks that this machine
can't build are listed with what is missing. With --node it measures between
other machines, over ssh, as far as the networks span hosts.

`,
		Example: `  cleat bench quick
  cleat bench quick --networks veth,bridge,macvlan-bridge --out before
  cleat bench rootless --work tcp --mtu 65520,1500
  cleat bench overlays --only "network=vxlan|geneve,work=tcp"
  cleat bench claassen2015 --repeat 3 --duration 1s --pairs 1,2,4,8,16
  cleat bench multipath --links 1..4 --repeat 3 --duration 2s
  cleat bench multipath --networks tunnel,mptcp --factor variant=blackhole
  sudo cleat bench virtual-interfaces --runtime native,docker,podman
  cleat bench my-experiment.yaml --json
  cleat bench overlays --node ssh://root@db1 --node ssh://root@db2`,
		Args:              oneExperiment,
		ValidArgsFunction: completePresets,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.Networks, "networks", nil, "measure only the networks of `LIST`, separated by commas")
	flags.StringSliceVar(&f.Work, "work", nil, "do only the kinds of work of `LIST`, separated by commas, e.g. tcp,rr")
	flags.StringSliceVar(&f.only, "only", nil, "measure only what matches `AXIS=VALUE`[|VALUE], separated by commas, e.g. network=vxlan,mtu=1500")
	flags.Func("pairs", "use the `NUMBERS` of client-server pairs, 1 to 128, e.g. 1..4,16", addNumbers(&f.Pairs))
	flags.Func("mtu", "set the MTU of the links to each of `BYTES`, separated by commas", addNumbers(&f.MTU))
	flags.Func("links", "use the `NUMBERS` of links between two hosts, e.g. 1..4,12; for networks over several links", addNumbers(&f.Links))
	flags.StringVar(&f.linkRate, "link-rate", "", "limit the links between nodes to `RATE` bit/s, e.g. 10G (default: no limit)")
	flags.Func("factor", "vary a further factor, `NAME=LEVELS`, for all networks that have it, e.g. variant=plain,loss", addFactor(&f.Factors))
	flags.StringSliceVar(&f.Runtimes, "runtime", nil, "run clients and servers in the runtimes of `LIST`: native, docker, podman, apptainer")
	f.defineShared(cmd)
	flavourFlag(cmd, &f.lab)
	f.remote.define(cmd)
	flags.StringVar(&f.out, "out", "", "write the results to `DIR`, which must not hold any yet (default: cleat-bench-PRESET-TIME)")
	help.Add(cmd, presetList)
	help.Group(cmd, "What to measure", "networks", "work", "only", "pairs", "mtu", "links", "link-rate", "factor", "engine", "runtime")
	help.Group(cmd, "How to measure", "repeat", "duration", "seed", "lab")
	help.Group(cmd, "Between machines", "node", "device", "ssh")
	help.Group(cmd, "Results", "out", "json", "quiet")
	help.File(cmd, "DIR/samples.jsonl", "one line for each sample, written as it is taken")
	help.File(cmd, "DIR/environment.json", "the machine, the versions, the experiment and the seed")
	help.File(cmd, "DIR/summary.json, DIR/summary.csv", "medians with intervals, for programs")
	help.File(cmd, "DIR/report.html", "tables and figures, for a browser")
	complete.List(cmd, "networks", experiment.NetworkNames())
	complete.Words(cmd, "factor", experiment.FactorNames()...)
	complete.List(cmd, "runtime", cell.Runtimes())
	complete.List(cmd, "work", experiment.WorkKinds())
	completeOnly(cmd)
	cmd.AddCommand(newList(), newBetween(), newCompare(), newReport(), newNode())
	return cmd
}

// defineShared adds the flags that every measurement has.
func (f *flags) defineShared(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.Repeat, "repeat", 0, "take `NUMBER` samples of each measurement")
	flags.DurationVar(&f.Duration, "duration", 0, "measure for `DURATION` each, e.g. 2s")
	flags.Uint64Var(&f.Seed, "seed", 0, "order the measurements by the random `SEED` (default: a new one, which is recorded)")
	flags.StringSliceVar(&f.Engine, "engine", nil, "use the traffic generators of `LIST`: cleat, iperf3, iperf")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "show no progress")
	flags.BoolVar(&f.json, "json", false, "print summary.json instead of the table")
	complete.List(cmd, "engine", engines)
}

// presetList returns the presets for the help, with the longest time that each takes. To find that out
// takes 140 ms.
var presetList = sync.OnceValue(func() string {
	text := "Presets, and how long they take with every network and program:\n"
	for _, e := range experiment.Presets() {
		head := fmt.Sprintf("  %-18s %5s  ", e.Name, about(e.Estimate(nil)))
		text += columns.Paragraph(head, strings.Repeat(" ", len(head)), e.Title, 74)
	}
	return text + "A run that takes more than ten minutes says so before it starts.\n"
})

// load reads the experiment and applies the flags. Nothing has started yet.
func (f *flags) load(cmd *cobra.Command, preset string) (experiment.Experiment, error) {
	e, err := experiment.Load(preset)
	if err != nil {
		return e, loadError(cmd, preset, err)
	}
	f.Override.LinkRate = experiment.Rate(f.linkRate)
	if f.Override.Only, err = experiment.ParseOnly(f.only); err != nil {
		return e, nameFlag(cmd, err)
	}
	if err := f.given(cmd); err != nil {
		return e, err
	}
	e = e.Override(f.Override)
	if err := e.Validate(); err != nil {
		return e, nameFlag(cmd, listHint(err))
	}
	if err := f.Override.ValidateUse(e); err != nil {
		return e, nameFlag(cmd, err)
	}
	return e, findEngines(e)
}

// given rejects flags that were given an empty value.
func (f *flags) given(cmd *cobra.Command) error {
	var err error
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if err == nil {
			err = f.Override.Given(flag.Name)
		}
		if err == nil && flag.Name == "out" && f.out == "" {
			err = hint.Usagef("--out needs a value")
		}
	})
	return nameFlag(cmd, err)
}

// nameFlag returns err with the dashes of a flag. Package experiment begins an error with the
// key of a file, such as "link rate", which may have been given by the flag --link-rate.
func nameFlag(cmd *cobra.Command, err error) error {
	var wrong *experiment.Error
	if !errors.As(err, &wrong) || wrong.File != "" {
		return err
	}
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		rest, ok := strings.CutPrefix(wrong.Problem, strings.ReplaceAll(flag.Name, "-", " "))
		if ok && strings.IndexAny(rest, " :") == 0 {
			named := *wrong
			named.Problem = "--" + flag.Name + rest
			err = &named
		}
	})
	return err
}

// listHint adds a hint to an error about a network that does not exist.
func listHint(err error) error {
	var wrong *experiment.Error
	if errors.As(err, &wrong) && strings.HasPrefix(wrong.Problem, "unknown network ") {
		return hint.With(err, "`cleat bench list` describes all networks")
	}
	return err
}

func (f *flags) run(cmd *cobra.Command, preset string) error {
	f.version = cmd.Root().Version
	ctx := cmd.Context()
	if err := checkFlavour(f.lab); err != nil {
		return err
	}
	if err := f.remote.check(cmd); err != nil {
		return err
	}
	e, err := f.load(cmd, preset)
	if err != nil {
		return err
	}
	if err := f.chooseDir(e.Name); err != nil {
		return err
	}
	if len(f.remote.nodes) > 0 {
		return f.betweenMachines(ctx, bench.WithExistingPath(e))
	}
	if _, inside := lab.Inside(); !inside {
		return enterLab(ctx, lab.Config{Flavour: f.flavour(e), Env: f.env()})
	}
	scratch, err := lab.Settle()
	if err != nil {
		return err
	}
	return f.carryOut(ctx, e, scratch, bench.Possible(), func(cfg bench.Config) error { return bench.Run(ctx, cfg) })
}

// flavour returns the lab that the experiment needs: root's, if available, for containers
// of other runtimes, for programs that change users, and for the real-time priority of the
// zoo's relay.
func (f *flags) flavour(e experiment.Experiment) lab.Flavour {
	byRoot := func(j experiment.Job) bool {
		network, _ := catalog.Lookup(j.Cell.Network)
		_, isZoo := j.Case()
		return j.Cell.Runtime != cell.Native || network.RootLab || isZoo
	}
	if slices.ContainsFunc(e.Jobs(), byRoot) {
		return preferRoot(f.lab)
	}
	return flavourOf(f.lab)
}

// dirEnv passes the result directory to the copy in the lab, whose command line is the
// user's.
const dirEnv = "CLEAT_RESULTS"

func (f *flags) env() []string { return []string{dirEnv + "=" + f.out} }

func (f *flags) chooseDir(what string) error {
	if dir := os.Getenv(dirEnv); dir != "" {
		if _, inside := lab.Inside(); inside {
			f.out = dir
		}
	}
	if f.out == "" {
		f.out = fmt.Sprintf("cleat-bench-%s-%s", what, time.Now().Format("20060102-150405"))
	}
	if _, err := os.Stat(filepath.Join(f.out, bench.SamplesFile)); err == nil {
		return hint.With(hint.Usagef("%w: %s", bench.ErrNotEmpty, f.out), "give another directory with --out, or remove this one")
	}
	return nil
}

// carryOut runs an experiment inside the lab or between machines, and writes its
// conclusions even if it was interrupted, or a machine was lost.
func (f *flags) carryOut(ctx context.Context, e experiment.Experiment, scratch string, possible func(experiment.Job) bool, run func(bench.Config) error) error {
	p := newProgress(os.Stderr, e, f.out, f.quiet, possible)
	err := run(bench.Config{Experiment: e, Dir: f.out, Scratch: scratch, Progress: p, Version: f.version, Command: os.Args})
	p.end()
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*remote.Lost)) {
		return err
	}
	return errors.Join(f.conclude(), err)
}

// conclude writes the files derived from the samples, and prints the answer.
func (f *flags) conclude() error {
	results, err := summary.Read(f.out)
	if err != nil {
		return err
	}
	if err := rewrite(f.out, results); err != nil {
		return err
	}
	if f.json {
		err = summary.WriteJSON(os.Stdout, results.Summaries)
	} else {
		err = printConclusion(os.Stdout, f.out, results)
	}
	if err != nil {
		return err
	}
	return noMeasurement(results)
}

// noMeasurement returns an error if nothing was measured, with a reason if one is known.
func noMeasurement(results summary.Results) error {
	if slices.ContainsFunc(results.Summaries, func(s cell.Summary) bool { return s.Available }) {
		return nil
	}
	for _, s := range results.Samples {
		if s.Error != "" {
			return fmt.Errorf("nothing was measured: %s %s: %s", s.Network, s.Work, s.Error)
		}
	}
	return hint.With(errors.New("nothing was measured"), "`cleat bench list` says what this machine can measure, and what it lacks for the rest")
}

// engines are the traffic generators that an experiment may use.
var engines = []string{"cleat", "iperf3", "iperf"}

// flavours are the values of --lab.
var flavours = []string{"auto", "user", "root"}

func flavourFlag(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "lab", "auto", "`FLAVOUR` of the lab, the namespaces that everything is in: user (needs no root), root, or auto")
	complete.Words(cmd, "lab", flavours...)
}

func checkFlavour(flag string) error {
	if slices.Contains(flavours, flag) {
		return nil
	}
	return hint.With(hint.Usagef("--lab %q: no such flavour", flag), hint.DidYouMean(flag, flavours))
}

func flavourOf(flag string) lab.Flavour {
	if flag == "auto" {
		return lab.Auto
	}
	return lab.Flavour(flag)
}

// preferRoot is root's lab if root runs the command and did not choose.
func preferRoot(flag string) lab.Flavour {
	if flag == "auto" && os.Geteuid() == 0 {
		return lab.Root
	}
	return flavourOf(flag)
}

// enterLab runs this command line again inside a lab and returns its exit code.
func enterLab(ctx context.Context, cfg lab.Config) error {
	code, err := lab.Enter(ctx, cfg)
	var refused *lab.Refused
	if errors.As(err, &refused) {
		return hint.With(err, refused.Hint())
	}
	if err == nil && code != 0 {
		return exit.Status(code)
	}
	return err
}
