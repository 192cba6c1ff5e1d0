package attach

import (
	"strings"

	"cleat/cli/container"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/network/attach"

	"github.com/spf13/cobra"
)

// DetachName is the name of the command detach.
const DetachName = "detach"

// NewDetach returns the command detach.
func NewDetach() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   DetachName + " CONTAINER [LINK]",
		DisableFlagsInUseLine: true,
		Short:                 "remove a link from a container",
		Long: `Undoes what ` + "`cleat attach`" + ` did for a link. A device that was moved returns with
its name, addresses and routes. A bridge that attach created is removed with the
last link that uses it. What others created or changed stays. If the container
is gone, detach cleans up what is left of the link. LINK may be left out if the
container has only one attached link.`,
		Example: `  cleat detach web eth1
  cleat detach podman:web`,
		RunE: onAttachment(func(cmd *cobra.Command, cfg attach.Config, container, link string) error {
			a, notes, err := attach.Detach(cmd.Context(), cfg, container, link)
			if err != nil {
				return WithHint(err)
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return term.WriteJSONLine(out, map[string]any{"done": true, "attachment": a, "notes": term.OrEmpty(notes)})
			}
			return printNotes(out, notes)
		}),
		ValidArgsFunction: completeAttachment,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	documentFiles(cmd)
	return cmd
}

// onAttachment returns the RunE of a command whose arguments are a container and, optionally,
// the name of its link. link is "" if it is left out.
func onAttachment(run func(cmd *cobra.Command, cfg attach.Config, container, link string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 && len(args) != 2 {
			return hint.With(hint.Usagef("%s: want a container, and a link if it has several", cmd.CommandPath()),
				"e.g. `"+cmd.CommandPath()+" web eth1`; `cleat ls` lists what is attached")
		}
		cfg, err := container.Config()
		if err != nil {
			return err
		}
		return run(cmd, cfg, args[0], strings.Join(args[1:], ""))
	}
}
