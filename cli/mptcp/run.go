package mptcp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/signal"
	"syscall"

	"cleat/cli/exit"
	"cleat/cli/hint"
	"cleat/cli/run"
	"cleat/mptcp/upgrade"

	"github.com/spf13/cobra"
)

func newRun() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:                   "run [--strict] -- PROGRAM [ARG…]",
		DisableFlagsInUseLine: true,
		Short:                 "run a program whose TCP sockets are MPTCP sockets",
		Long: `Becomes PROGRAM, whose TCP sockets, and those of all that it starts, are MPTCP
sockets: clients' and servers', of programs in any language, linked statically
or not. No root is needed. A connection whose other end does not know MPTCP is a
TCP connection, as it would be without.

A socket for which the kernel refuses MPTCP is a TCP socket; with --strict it is
an error, and PROGRAM is not started where there is no MPTCP at all.

Without root, set-user-ID programs such as sudo gain nothing below it. The exit
code is PROGRAM's, or 127 where there is no such program, 126 where it can't be
run.`,
		Example: `  cleat mptcp run -- curl -O https://example.com/file
  cleat mptcp run --strict -- ./server`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return hint.With(hint.Usagef("no program given"), "give one to run, e.g. `cleat mptcp run -- curl https://example.com`")
			}
			return runUpgraded(cmd.ErrOrStderr(), args, strict)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows PROGRAM is PROGRAM's
	cmd.Flags().BoolVar(&strict, "strict", false, "fail instead of using TCP if the kernel refuses MPTCP")
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return cmd
}

// runUpgraded returns only an error: it becomes the program.
func runUpgraded(stderr io.Writer, args []string, strict bool) error {
	signal.Reset(syscall.SIGINT, syscall.SIGTERM) // the program's from here on
	path, err := run.LookUp(args[0])
	if err != nil {
		return err
	}
	var refusal *upgrade.Refusal
	if err := upgrade.Check(); errors.As(err, &refusal) {
		if strict {
			return hint.With(err, refusal.Remedy)
		}
		fmt.Fprintf(stderr, "cleat: warning: %v; TCP is used (%s)\n", err, refusal.Remedy)
	}
	return upgradeError(upgrade.Exec(upgrade.Config{Path: path, Args: args, Strict: strict}))
}

// upgradeError adds what to do, and the exit codes of shells.
func upgradeError(err error) error {
	var start *upgrade.StartError
	switch {
	case errors.Is(err, upgrade.ErrOtherSupervisor):
		return hint.With(err, "a program that can speak MPTCP by itself needs no help, e.g. GODEBUG=multipathtcp=1 for Go's, or mptcpize run PROGRAM")
	case errors.Is(err, upgrade.ErrOldKernel):
		return hint.With(err, "mptcpize run PROGRAM reaches programs that are linked dynamically, GODEBUG=multipathtcp=1 Go's")
	case !errors.As(err, &start):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return exit.With(exit.NotFound, hint.With(err, "the interpreter that its first line names, or its dynamic linker, is missing"))
	}
	return exit.With(exit.NotExecutable, err)
}
