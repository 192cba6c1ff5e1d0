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

// NewLs returns the command ls.
func NewLs() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "ls",
		DisableFlagsInUseLine: true,
		Short:                 "list attachments and their state",
		Long: `Lists all attachments: container, link, kind, parent, addresses and state.

  attached  the link exists and is up
  down      the link exists, but somebody set it down
  missing   somebody removed the link
  gone      the container has ended, or another one has its name now
  wanted    there is no link: usually the machine was restarted
  busy      a command is working on it, or was killed while it did
  broken    its journal is damaged or missing; see ` + "`cleat inspect`" + `
  unknown   only root can read the state
  kept      ` + "`cleat keep`" + ` extends its lease, and with --keep attaches it again
  failing   the keeper can't do that; see ` + "`cleat keep --status`" + ``,
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
			// attach starts the keeper at its end, so a busy attachment may not have one yet.
			if slices.ContainsFunc(all, func(s attach.Status) bool { return s.NeedsKeeper() && s.State != attach.Busy }) {
				if state := keep.StateOf(cfg.Store); !state.Running && !state.Starting {
					fmt.Fprintln(cmd.ErrOrStderr(), "cleat: note: no keeper runs; `cleat keep` extends leases and attaches again")
				}
			}
			return WithHint(err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	documentFiles(cmd)
	return cmd
}

// NewInspect returns the command inspect.
func NewInspect() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "inspect CONTAINER [LINK]",
		DisableFlagsInUseLine: true,
		Short:                 "show one attachment in detail",
		Long: `Shows the parameters of one attachment, its state, its lease and the steps that
made it. LINK may be left out if the container has only one attached link.`,
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
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	documentFiles(cmd)
	return cmd
}
