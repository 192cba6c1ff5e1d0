package node

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"

	"cleat/cli/complete"
	"cleat/cli/exit"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/cli/man"
	"cleat/internal/buildinfo"
	"cleat/network/attach"
	"cleat/overlay"
	"cleat/overlay/control"
	"cleat/overlay/registry"

	"github.com/spf13/cobra"
)

const program = "cleat-node"

// NewDataplane makes this host's dataplane.
type NewDataplane func(store *attach.Store, log func(format string, args ...any)) (overlay.Dataplane, error)

// Run executes a command line, without the program's name, and returns the exit code.
func Run(args []string, dataplane NewDataplane) int {
	runtime.LockOSThread() // the first thread must not enter namespaces (netns.Do)
	code := make(chan int)
	go func() {
		ctx, stop := exit.Interruptible()
		defer stop()
		code <- execute(ctx, args, os.Stdout, os.Stderr, dataplane)
	}()
	return <-code
}

func execute(ctx context.Context, args []string, out, errs io.Writer, dataplane NewDataplane) int {
	root := newRoot(dataplane)
	root.SetOut(out)
	root.SetErr(errs)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return exit.Report(errs, withHint(err), context.Cause(ctx))
}

func newRoot(dataplane NewDataplane) *cobra.Command {
	root := &cobra.Command{
		Use:   "cleat-node COMMAND",
		Short: "networks that span hosts",
		Long: `cleat-node makes this machine one of several hosts that have networks in common:
"cleat net create NAME --span" on one of them creates a network on all. Their
containers reach each other by name and address, whichever host they are on.

It runs beside "cleat", which connects containers as on a single host. What the
hosts have in common is in an etcd that cleat-node itself runs on some of them.`,
		Example: `  # the first host
  cleat-node up

  # there: print what another host needs to join
  cleat-node token

  # the other host
  cleat-node up --token TOKEN

  # on any of them: a network on all
  cleat net create web --span`,
		Version:           buildinfo.Version(),
		Args:              cobra.NoArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetVersionTemplate("cleat-node {{.Version}}\n")
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { help.Print(cmd.OutOrStdout(), cmd) })
	root.SetUsageFunc(func(cmd *cobra.Command) error { help.Print(cmd.ErrOrStderr(), cmd); return nil })
	root.AddCommand(newUp(dataplane), newDown(dataplane), newToken(), newStatus(), newLeave(dataplane), newRemove(), newSet(), newBackup(), newRestore(), newRotate(), newUI(), complete.New(program), man.New(program))
	help.File(root, "/var/lib/cleat/node", "this host's key, and what it knows of the cluster; CLEAT_STATE_DIR replaces /var/lib/cleat")
	return root
}

// withHint adds to an error what to type next.
func withHint(err error) error {
	var byNode *control.Error
	var refused *overlay.RefusedError
	var packets *overlay.PacketsError
	var restore *overlay.RestoreError
	var external *registry.ExternalError
	switch {
	case errors.As(err, &packets):
		return hint.With(err, packets.Hint())
	case errors.As(err, &external) && external.Help != "":
		return hint.With(err, external.Help)
	case errors.As(err, &restore) && restore.Help != "":
		return hint.With(err, restore.Help)
	case errors.Is(err, control.ErrNotRunning):
		return hint.With(err, "`cleat-node up` starts it")
	case errors.As(err, &byNode) && byNode.Hint != "":
		return hint.With(err, byNode.Hint)
	case errors.As(err, &refused) && refused.Help != "":
		return hint.With(err, refused.Help)
	}
	return err
}

// status returns what the node of this host says.
func status(ctx context.Context) (s control.Status, err error) {
	c, err := client()
	if err != nil {
		return s, err
	}
	return c.Status(ctx)
}

// client returns a client for the node of this host.
func client() (*control.Client, error) {
	store, err := attach.OpenStore("")
	if err != nil {
		return nil, err
	}
	return control.New(store.Path()), nil
}
