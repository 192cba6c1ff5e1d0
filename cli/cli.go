package cli

import (
	"context"
	"io"
	"os"
	"runtime"

	"cleat/cli/attach"
	"cleat/cli/bench"
	"cleat/cli/complete"
	"cleat/cli/ctl"
	"cleat/cli/doctor"
	"cleat/cli/exit"
	"cleat/cli/graph"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/cli/keep"
	"cleat/cli/man"
	"cleat/cli/mptcp"
	"cleat/cli/networks"
	"cleat/cli/run"
	"cleat/cli/traffic"
	"cleat/cli/tunnel"
	"cleat/compat"
	"cleat/internal/buildinfo"

	"github.com/spf13/cobra"
)

// Run executes a command line, without the program's name, and returns the exit code. A
// running keeper executes command lines that change wiring.
func Run(args []string) int {
	if !isForKeeper(args) {
		return runHere(args)
	}
	if code, handled := forward(args); handled {
		return code
	}
	// The first thread must not enter namespaces (netns.Do).
	runtime.LockOSThread()
	code := make(chan int)
	go func() {
		c := runHere(args)
		if args[0] == networks.Name {
			networks.StartKeeper() // whose end may be why it did not run the command
		}
		code <- c
	}()
	return <-code
}

func runHere(args []string) int {
	ctx := context.Background()
	if len(args) == 0 || args[0] != run.Name { // run handles signals itself
		var stop context.CancelFunc
		ctx, stop = exit.Interruptible()
		defer stop()
	}
	return execute(ctx, args, os.Stdout, os.Stderr)
}

// execute executes a command line with a given context and output.
func execute(ctx context.Context, args []string, out, errs io.Writer) int {
	root := newRootFor(args)
	root.SetOut(out)
	root.SetErr(errs)
	root.SetArgs(ctl.Args(args))
	started := trackStart(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !*started {
		err = hint.BeforeStart(cmd, err)
	}
	return exit.Report(errs, err, context.Cause(ctx))
}

// Groups of commands in the help of the root command.
const (
	groupMeasure = "measure"
	groupRun     = "run"
	groupWire    = "wire"
	groupOther   = "other"
)

// newRootFor returns the root command for a command line. For run, attach and detach it has
// only that command, so that the program starts in a third of the time.
func newRootFor(args []string) *cobra.Command {
	if len(args) == 0 {
		return newRootCmd()
	}
	root := newBareRootCmd()
	switch args[0] {
	case run.Name:
		add(root, groupRun, run.New())
	case attach.Name:
		add(root, groupWire, attach.New())
	case attach.DetachName:
		add(root, groupWire, attach.NewDetach())
	case networks.Name:
		add(root, groupWire, networks.New())
	default:
		return newRootCmd()
	}
	return root
}

func newRootCmd() *cobra.Command {
	root := newBareRootCmd()
	add(root, groupMeasure, bench.New(), bench.NewRecommend(), doctor.New(), traffic.New())
	add(root, groupRun, run.New(), ctl.New(), run.NewProfile(), tunnel.New(), mptcp.New())
	add(root, groupWire, attach.WithCompletion(attach.New()), attach.NewDetach(), attach.NewLs(), attach.NewInspect(), networks.New(), graph.New(), keep.New(answer))
	root.AddCommand(newCompatCommands()...)
	add(root, groupOther, complete.New("cleat"), man.New("cleat"))
	return root
}

func newBareRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "cleat COMMAND",
		Short: "measure container networks, wire containers, give a process its own network",
		Long: `Cleat builds every kind of container network that this machine supports,
measures them against each other, and recommends one, with reasons. It measures
in namespaces of its own, so the host's network does not change, and needs root
only where the kernel demands it.

It also runs a command in a network of its own, without root, and controls what
the command can reach. It joins two hosts by all the links between them. And it
gives running containers links of any kind, and removes them again; each change
is atomic.

Exit codes: 0 success, 1 failure, 2 usage error (nothing was started), 3 a
regression was found, 4 another keeper runs (cleat keep), 130 interrupted by
Ctrl-C after writing partial results.`,
		Example: `  # which network is fastest here, in under three minutes
  cleat bench quick

  # which networks this machine supports, and what the others lack
  cleat bench list

  # a shell with its own network
  cleat run -- bash

  # as root: put a container on the network of eth0, and draw the wiring
  cleat attach web macvlan eth0 --ip 192.0.2.10/24
  cleat graph`,
		Version:           buildinfo.Version(),
		Args:              hint.NoCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	help.Status(root, "3", "a regression was found (bench compare)")
	help.Status(root, "4", "another keeper runs (keep)")
	root.SetVersionTemplate("cleat {{.Version}}\n")
	root.SetFlagErrorFunc(hint.FlagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { help.Print(cmd.OutOrStdout(), cmd) })
	root.SetUsageFunc(func(cmd *cobra.Command) error { help.Print(cmd.ErrOrStderr(), cmd); return nil })
	root.SetHelpCommand(help.New())
	root.SetHelpCommandGroupID(groupOther)
	root.AddGroup(&cobra.Group{ID: groupMeasure, Title: "Measure"}, &cobra.Group{ID: groupRun, Title: "Run"},
		&cobra.Group{ID: groupWire, Title: "Wire"}, &cobra.Group{ID: groupOther, Title: "Other"})
	return root
}

// add adds commands to the root under a heading of its help.
func add(root *cobra.Command, group string, cmds ...*cobra.Command) {
	for _, c := range cmds {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// trackStart returns a flag that is set once a command has started. An error before that is
// about flags or arguments.
func trackStart(root *cobra.Command) *bool {
	started := new(bool)
	help.EachCommand(root, func(c *cobra.Command) {
		if c.RunE == nil {
			return
		}
		runE := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return runE(cmd, args)
		}
	})
	return started
}

// newCompatCommands returns the programs that cleat replaces as commands, for the help.
// compat.Lookup finds them before there are commands.
func newCompatCommands() []*cobra.Command {
	var cmds []*cobra.Command
	for _, p := range compat.Programs() {
		group := groupRun
		if p.Wires {
			group = groupWire
		}
		cmds = append(cmds, &cobra.Command{
			Use:                   p.Name + " [OPTION…]",
			GroupID:               group,
			DisableFlagsInUseLine: true,
			DisableFlagParsing:    true,
			Short:                 p.Summary,
			Long:                  p.Text,
			RunE:                  func(_ *cobra.Command, args []string) error { return exit.Status(p.Main(args, buildinfo.Version())) },
		})
	}
	return cmds
}
