package mptcp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/signal"
	"syscall"

	"cleat/cli/exit"
	"cleat/cli/help"
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
		Short:                 "run a program with MPTCP sockets instead of TCP sockets",
		Long: `Executes PROGRAM. Its TCP sockets, and those of the programs that it starts, are
MPTCP sockets, for clients and servers, in any language, statically linked or
not. It needs no root. With a peer that does not speak MPTCP, a connection is an
ordinary TCP connection.

If the kernel refuses MPTCP for a socket, it is a TCP socket. With --strict that
is an error, and PROGRAM is not started if the kernel has no MPTCP.

Without root, set-user-ID programs such as sudo gain no rights below it. The
exit code is PROGRAM's, 127 if there is no such program, or 126 if it can't be
executed.`,
		Example: `  cleat mptcp run -- curl -O https://example.com/file
  cleat mptcp run --strict -- ./server`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return hint.With(hint.Usagef("no program given"), "e.g. `cleat mptcp run -- curl https://example.com`")
			}
			return runUpgraded(cmd.ErrOrStderr(), args, strict)
		},
	}
	cmd.Flags().SetInterspersed(false) // flags after PROGRAM are PROGRAM's
	cmd.Flags().BoolVar(&strict, "strict", false, "fail instead of using TCP if the kernel refuses MPTCP")
	help.Status(cmd, "126", "PROGRAM can't be executed")
	help.Status(cmd, "127", "there is no program PROGRAM")
	help.Status(cmd, "N", "PROGRAM's own, once it has started")
	cmd.ValidArgsFunction = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	return cmd
}

// runUpgraded executes the program in place of this one. It returns only on error.
func runUpgraded(stderr io.Writer, args []string, strict bool) error {
	signal.Reset(syscall.SIGINT, syscall.SIGTERM) // from here on, signals are the program's
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

// upgradeError adds a hint, and the exit codes of shells.
func upgradeError(err error) error {
	var start *upgrade.StartError
	switch {
	case errors.Is(err, upgrade.ErrOtherSupervisor):
		return hint.With(err, "use the program's own support, e.g. GODEBUG=multipathtcp=1 for Go programs, or `mptcpize run PROGRAM`")
	case errors.Is(err, upgrade.ErrOldKernel):
		return hint.With(err, "`mptcpize run PROGRAM` works for dynamically linked programs, GODEBUG=multipathtcp=1 for Go programs")
	case !errors.As(err, &start):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return exit.With(exit.NotFound, hint.With(err, "the interpreter in its first line, or its dynamic linker, is missing"))
	}
	return exit.With(exit.NotExecutable, err)
}
