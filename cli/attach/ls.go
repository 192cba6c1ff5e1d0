package attach

import (
	"errors"
	"fmt"
	"slices"

	"cleat/cli/container"
	"cleat/cli/term"
	"cleat/network/attach"
	"cleat/network/keep"

	"github.com/spf13/cobra"
)

func NewLs() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "ls",
		DisableFlagsInUseLine: true,
		Short:                 "list what is attached, and how it is",
		Long: `Lists every attachment: which container has which link, on what, with which
addresses, and how that is now.

  attached  the link is there and up
  down      it is there, but somebody brought it down
  missing   somebody removed it
  gone      the container has ended, or is another of the same name
  wanted    nothing is there: mostly, this machine was started anew since
  busy      a command is at work on it, or died at it
  broken    the journal of it is damaged or gone, as ` + "`cleat inspect`" + ` tells
  unknown   only root may look
  kept      ` + "`cleat keep`" + ` extends its lease, and with --keep attaches it again
  failing   it can't: ` + "`cleat keep --status`" + ` tells why`,
		Example: `  cleat ls
  cleat ls --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := container.Config()
			if err != nil {
				return err
			}
			all, err := attach.List(cmd.Context(), cfg.Store)
			print := func() error { return printAttachments(cmd.OutOrStdout(), all) }
			if asJSON {
				print = func() error { return term.WriteJSONLine(cmd.OutOrStdout(), term.OrEmpty(all)) }
			}
			err = errors.Join(print(), err)
			// Attaching starts the keeper at its end, so a busy one need not have it yet.
			if slices.ContainsFunc(all, func(s attach.Status) bool { return s.NeedsKeeper() && s.State != attach.Busy }) {
				if state := keep.StateOf(cfg.Store); !state.Running && !state.Starting {
					fmt.Fprintln(cmd.ErrOrStderr(), "cleat: note: no keeper runs: `cleat keep` extends leases, and attaches again")
				}
			}
			return WithHint(err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

func NewInspect() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "inspect CONTAINER [LINK]",
		DisableFlagsInUseLine: true,
		Short:                 "tell all about one attachment",
		Long: `Tells what is wanted of one attachment, what came of it, how it is now, and
which steps made it. LINK may be left out where the container has only one.`,
		Example: `  cleat inspect web
  cleat inspect web eth1 --json`,
		RunE: onAttachment(func(cmd *cobra.Command, cfg attach.Config, container, link string) error {
			s, err := attach.Inspect(cmd.Context(), cfg, container, link)
			if err != nil {
				return WithHint(fmt.Errorf("inspect: %w", err))
			}
			if asJSON {
				return term.WriteJSONLine(cmd.OutOrStdout(), s)
			}
			return printAttachment(cmd.OutOrStdout(), s)
		}),
		ValidArgsFunction: completeAttachment,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
