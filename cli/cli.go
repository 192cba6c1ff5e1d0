package cli

import (
	"context"
	"io"
	"os"
	"runtime"
	"runtime/debug"

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
	"cleat/cli/run"
	"cleat/cli/traffic"
	"cleat/cli/tunnel"

	"github.com/spf13/cobra"
)

// Run executes a command line, without the program's name, and returns the exit code. A
// running keeper executes command lines that change wiring.
func Run(args []string) int {
	if !isWiring(args) {
		return runHere(args)
	}
	if code, handled := forward(args); handled {
		return code
	}
	// The first thread must not enter namespaces (netns.Do).
	runtime.LockOSThread()
	code := make(chan int)
	go func() { code <- runHere(args) }()
	return <-code
}

// runHere executes a command line in this process.
func runHere(args []string) int {
	ctx := context.Background()
	if !ownSignals(args) {
		var stop context.CancelFunc
		ctx, stop = exit.Interruptible()
		defer stop()
	}
	return execute(ctx, args, os.Stdout, os.Stderr)
}

// execute executes a command line with a given context and output.
func execute(ctx context.Context, args []string, out, errs io.Writer) int {
	root := newRootOf(args)
	root.SetOut(out)
	root.SetErr(errs)
	root.SetArgs(ctl.Args(args))
	began := markBeginning(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !*began {
		err = hint.BeforeStart(cmd, err) // cobra's own complaints about flags and arguments
	}
	return exit.Report(errs, err, context.Cause(ctx))
}

// The groups order the commands in the help of the root.
const (
	groupMeasure = "measure"
	groupRun     = "run"
	groupWire    = "wire"
	groupOther   = "other"
)

// ownSignals tells whether the command is one whose signals are for another to
// answer.
func ownSignals(args []string) bool { return len(args) > 0 && args[0] == run.Name }

// newRootOf is the root with all commands, or, for `cleat run` and for what changes
// wiring, with that alone: it begins in a third of the time.
func newRootOf(args []string) *cobra.Command {
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
	default:
		return newRootCmd()
	}
	return root
}

// newRootCmd is the root with all its commands.
func newRootCmd() *cobra.Command {
	root := newBareRootCmd()
	add(root, groupMeasure, bench.New(), bench.NewRecommend(), doctor.New(), traffic.New())
	add(root, groupRun, run.New(), ctl.New(), run.NewProfile(), tunnel.New(), mptcp.New())
	add(root, groupWire, attach.WithCompletion(attach.New()), attach.NewDetach(), attach.NewLs(), attach.NewInspect(), graph.New(), keep.New(answer))
	root.AddCommand(newCompatCommands()...)
	add(root, groupOther, complete.New(), man.New())
	return root
}

func newBareRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "cleat COMMAND",
		Short: "measure container networks, wire containers, give a process a network of its own",
		Long: `Cleat builds every kind of container network that this machine can make,
measures them against each other, and says which to use and why. It works inside
namespaces of its own: the host's network is not touched, and root is not needed
except where the kernel demands it. It runs a command in a network of its own,
without root, with a say in what that may reach. And it gives a running
container a link of any kind, all or nothing, and takes it away again.

Exit codes: 0 done, 1 failed, 2 used wrongly (nothing was started), 3 a
regression was found, 4 another keeper runs (cleat keep), 130 stopped by Ctrl-C
after writing what there was.`,
		Example: `  # which network is fastest here, in under three minutes
  cleat bench quick

  # what the machine can make, and what it lacks for the rest
  cleat bench list

  # a shell with a network of its own
  cleat run -- bash

  # a running container on the network of eth0; what is wired to what
  cleat attach web macvlan eth0 --ip 192.0.2.10/24
  cleat graph`,
		Version:           Version(),
		Args:              hint.NoCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
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

// add wires commands into the root under one heading of its help.
func add(root *cobra.Command, group string, cmds ...*cobra.Command) {
	for _, c := range cmds {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// markBeginning lets the caller tell an error of a command from an error before
// any command began: wrong flags, wrong arguments.
func markBeginning(root *cobra.Command) *bool {
	began := new(bool)
	help.EachCommand(root, func(c *cobra.Command) {
		if c.RunE == nil {
			return
		}
		runE := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			*began = true
			return runE(cmd, args)
		}
	})
	return began
}

// Version returns the version that the build recorded, such as "v1.2.3".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "(unversioned build)"
	}
	return info.Main.Version
}
