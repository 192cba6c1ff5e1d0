// Command cleat builds every kind of Linux container network, measures them
// against each other on this machine, and says which to use and why.
//
// `cleat --help` is its manual in brief; `cleat man DIR` writes the manual
// pages. Exit codes: 0 done, 1 failed, 2 used wrongly (nothing was started),
// 3 a regression was found, 4 another keeper runs, 128 + N ended by signal N after a clean stop.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"cleat/lab"
	"cleat/mptcp"
	"cleat/mptcp/upgrade"
	"cleat/sandbox"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func main() {
	sandbox.Init()
	mptcp.Init()
	upgrade.Init()
	lab.AnswerProbe()
	if code, is := asFace(os.Args); is {
		os.Exit(code)
	}
	if args := os.Args[1:]; isWiring(args) {
		os.Exit(runWiring(args))
	}
	os.Exit(run(os.Args[1:]))
}

// runWiring has a running keeper run a command line that changes wiring, or runs it here.
// That is done on other threads than the first, which may enter namespaces (netns.Do).
func runWiring(args []string) int {
	if code, handled := forward(args); handled {
		return code
	}
	runtime.LockOSThread()
	code := make(chan int)
	go func() { code <- run(args) }()
	return <-code
}

// run executes one command line and returns the exit code.
func run(args []string) int {
	ctx := context.Background()
	if !ownSignals(args) {
		var stop context.CancelFunc
		ctx, stop = interruptible()
		defer stop()
	}
	return execute(ctx, args, os.Stdout, os.Stderr)
}

// execute is run with a context, and an output, of somebody's choice.
func execute(ctx context.Context, args []string, out, errs io.Writer) int {
	root := newRootOf(args)
	root.SetOut(out)
	root.SetErr(errs)
	root.SetArgs(ctlArgs(args))
	began := markBeginning(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !*began {
		err = beforeStart(cmd, err) // cobra's own complaints about flags and arguments
	}
	return report(errs, err, context.Cause(ctx))
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
func ownSignals(args []string) bool { return len(args) > 0 && args[0] == runName }

// newRootOf is the root with all commands, or, for `cleat run` and for what changes
// wiring, with that alone: it begins in a third of the time.
func newRootOf(args []string) *cobra.Command {
	if len(args) == 0 {
		return newRootCmd()
	}
	root := newBareRootCmd()
	switch args[0] {
	case runName:
		add(root, groupRun, newRunCmd())
	case attachName:
		add(root, groupWire, newAttachCmd())
	case detachName:
		add(root, groupWire, newDetachCmd())
	default:
		return newRootCmd()
	}
	return root
}

// newRootCmd is the root with all its commands.
func newRootCmd() *cobra.Command {
	root := newBareRootCmd()
	add(root, groupMeasure, newBenchCmd(), newRecommendCmd(), newDoctorCmd(), newTrafficCmd())
	add(root, groupRun, newRunCmd(), newCtlCmd(), newProfileCmd(), newTunnelCmd(), newMPTCPCmd())
	add(root, groupWire, withAttachCompletion(newAttachCmd()), newDetachCmd(), newLsCmd(), newInspectCmd(), newGraphCmd(), newKeepCmd(answer))
	root.AddCommand(newFaceCmds()...)
	add(root, groupOther, newCompletionCmd(), newManCmd())
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
		Version:           version(),
		Args:              noArgsButCommands,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetVersionTemplate("cleat {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd.OutOrStdout(), cmd) })
	root.SetUsageFunc(func(cmd *cobra.Command) error { printHelp(cmd.ErrOrStderr(), cmd); return nil })
	root.SetHelpCommand(newHelpCmd())
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
	eachCommand(root, func(c *cobra.Command) {
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

// eachCommand calls f for root and everything below it.
func eachCommand(root *cobra.Command, f func(*cobra.Command)) {
	f(root)
	for _, c := range root.Commands() {
		eachCommand(c, f)
	}
}

// interruptible returns a context that the first SIGINT or SIGTERM cancels,
// with a signalled error as its cause. From then on the signals have their
// default action again, so that a second Ctrl-C ends the process at once.
//
// Inside a lab SIGPIPE does the same when nobody reads our output any more:
// process 1 of a PID namespace can't die of it, and Go would exit with 2.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM)
	piped := make(chan os.Signal, 1)
	if _, inside := lab.Inside(); inside {
		signal.Notify(piped, syscall.SIGPIPE)
	}
	go func() {
		for {
			select {
			case s := <-caught:
				signal.Reset(syscall.SIGINT, syscall.SIGTERM)
				cancel(signalled{s.(syscall.Signal)})
			case <-piped:
				if !outputClosed() {
					continue // a socket's peer has gone, whose user gets the error
				}
				cancel(signalled{syscall.SIGPIPE})
			case <-ctx.Done():
			}
			return
		}
	}()
	return ctx, func() { signal.Stop(caught); cancel(nil) }
}

// outputClosed tells whether nobody reads our standard output or error.
func outputClosed() bool {
	fds := []unix.PollFd{{Fd: 1}, {Fd: 2}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 // POLLERR and POLLHUP need no asking
}

// signalled is the cause of a context that a signal cancelled.
type signalled struct{ signal syscall.Signal }

func (s signalled) Error() string { return fmt.Sprintf("stopped by signal: %s", s.signal) }

// version is what the build recorded about itself.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "(unversioned build)"
	}
	return info.Main.Version
}
