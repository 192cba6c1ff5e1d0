package attach

import (
	"strings"

	"cleat/cli/container"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/network/attach"

	"github.com/spf13/cobra"
)

// DetachName is the command's name, which main looks for before there are any.
const DetachName = "detach"

func NewDetach() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   DetachName + " CONTAINER [LINK]",
		DisableFlagsInUseLine: true,
		Short:                 "take a container's link away again",
		Long: `Undoes what ` + "`cleat attach`" + ` did for a link, and forgets it: a device that was
moved comes back with its name, addresses and routes; a bridge that was made
goes with the last that uses it. What others have made or changed meanwhile
stays. If the container is gone, the rest is tidied up. LINK may be left out
where the container has only one that was attached.`,
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
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// onAttachment is a command about one attachment, whose arguments are a container and the name of
// its link, "" where that is left out.
func onAttachment(run func(cmd *cobra.Command, cfg attach.Config, container, link string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 && len(args) != 2 {
			return hint.With(hint.Usagef("%s: want a container, and the name of its link if it has several", cmd.CommandPath()),
				"e.g. `"+cmd.CommandPath()+" web eth1`; `cleat ls` lists what is attached")
		}
		cfg, err := container.Config()
		if err != nil {
			return err
		}
		return run(cmd, cfg, args[0], strings.Join(args[1:], ""))
	}
}

// completeAttachment offers such arguments.
func completeAttachment(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return completeAttached(args), cobra.ShellCompDirectiveNoFileComp
}
