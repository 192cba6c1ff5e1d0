package mptcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"cleat/cli/complete"
	"cleat/cli/container"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/link"
	"cleat/mptcp"
	"cleat/netns"

	"github.com/spf13/cobra"
)

func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mptcp COMMAND",
		Short: "use several links for one TCP connection, by the kernel's MPTCP",
		Long: `Multipath TCP (RFC 8684) spreads a TCP connection over several links, where both
ends speak it. "setup" tells the kernel which addresses to use and sends each
one's packets out by its own link; "run" has a program's TCP sockets speak
MPTCP, also where LD_PRELOAD can't reach; "status" shows what came of it. What
it can't do (UDP, more links than the kernel allows) and why: doc/mptcp.md.`,
		Example: `  # as root: all connections may use both links
  cleat mptcp setup eth0 wlan0

  # and this program's do
  cleat mptcp run -- curl https://example.com

  # by which links do connections go
  cleat mptcp status --watch`,
		Args: hint.NoCommand,
		RunE: hint.NoCommand,
	}
	cmd.AddCommand(newSetup(), newStatus(), newRun())
	return cmd
}

// namespace is that of --netns, or our own.
func namespace(ctx context.Context, ref string) (*netns.NS, error) {
	if ref == "" {
		return netns.Current()
	}
	return container.Namespace(ctx, ref)
}

// completeNamespaces offers those that have names for --netns, and files.
func completeNamespaces(cmd *cobra.Command) {
	complete.Flag(cmd, "netns", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return namedNamespaces(), cobra.ShellCompDirectiveDefault
	})
}

// withHint adds what to type.
func withHint(err error) error {
	var device *mptcp.DeviceError
	var off *mptcp.SwitchError
	var lack *link.Lack
	var file *os.PathError
	switch {
	case errors.As(err, &device):
		return hint.With(hint.Usage(err), device.Remedy)
	case errors.As(err, &off):
		return hint.With(err, "as root: "+off.Remedy)
	case errors.As(err, &lack):
		return hint.With(err, lack.Remedy)
	case errors.Is(err, mptcp.ErrTaken):
		return hint.With(err, "remove that one: ip mptcp endpoint delete id ID")
	case errors.Is(err, mptcp.ErrChanged):
		return hint.With(err, "give the command again")
	case errors.As(err, &file) && errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		return hint.With(err, "it takes root (CAP_NET_ADMIN, and a directory for what was done: /run/cleat, or CLEAT_RUN_DIR)")
	}
	return err
}

// bite says what it means that there are more devices than the kernel has places for.
// "": there are not.
func bite(devices, left int, most link.MPTCPCapacity, limits link.MPTCPLimits) string {
	if left == 0 {
		return ""
	}
	who := "kernel allows"
	if limits.Subflows < most.Subflows {
		who = "the limit is"
	}
	return fmt.Sprintf("%s given, %s %s: %s used", term.Count(devices, "device"), who, term.Count(limits.Subflows, "further subflow"), term.Count(devices-left, "link"))
}

// namedNamespaces are those under /run/netns.
func namedNamespaces() []string {
	all, err := os.ReadDir("/run/netns")
	if err != nil {
		return nil // none has a name
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
