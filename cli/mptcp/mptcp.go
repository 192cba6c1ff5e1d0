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

// New returns the command mptcp.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mptcp COMMAND",
		Short: "use several links for one TCP connection (MPTCP)",
		Long: `Multipath TCP (RFC 8684) spreads a TCP connection over several links if both
ends speak it. "setup" tells the kernel which addresses to use, and routes the
packets of each by its own link. "run" makes a program's TCP sockets speak
MPTCP, even where LD_PRELOAD can't reach. "status" shows the result.
doc/mptcp.md explains the limits, such as UDP, or more links than the kernel
allows.`,
		Example: `  # as root: prepare both links
  cleat mptcp setup eth0 wlan0

  # run a program whose connections use them
  cleat mptcp run -- curl https://example.com

  # show which links each connection uses
  cleat mptcp status --watch`,
		Args: hint.NoCommand,
		RunE: hint.NoCommand,
	}
	cmd.AddCommand(newSetup(), newStatus(), newRun())
	return cmd
}

// namespace returns the namespace of --netns, or the current one.
func namespace(ctx context.Context, ref string) (*netns.NS, error) {
	if ref == "" {
		return netns.Current()
	}
	return container.Namespace(ctx, ref)
}

// completeNamespaces completes --netns with named namespaces, and files.
func completeNamespaces(cmd *cobra.Command) {
	complete.Flag(cmd, "netns", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		all, _ := os.ReadDir("/run/netns") // an error means that there are none
		var names []string
		for _, e := range all {
			names = append(names, e.Name())
		}
		return names, cobra.ShellCompDirectiveDefault
	})
}

// withHint adds a hint to an error of package mptcp.
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
		return hint.With(err, "remove it: ip mptcp endpoint delete id ID")
	case errors.Is(err, mptcp.ErrChanged):
		return hint.With(err, "run the command again")
	case errors.As(err, &file) && errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM):
		return hint.With(err, "this needs root: CAP_NET_ADMIN, and write access to /run/cleat (or CLEAT_RUN_DIR)")
	}
	return err
}

// unusedText describes that some devices are not used because the kernel's limit, or the
// configured one, is lower. It is "" if all are used.
func unusedText(devices, left int, most link.MPTCPCapacity, limits link.MPTCPLimits) string {
	if left == 0 {
		return ""
	}
	limit := "kernel allows"
	if limits.Subflows < most.Subflows {
		limit = "the limit is"
	}
	return fmt.Sprintf("%s given, %s %s: %s used", term.Count(devices, "device"), limit, term.Count(limits.Subflows, "further subflow"), term.Count(devices-left, "link"))
}
