package complete

import (
	"strings"

	"cleat/cli/hint"

	"github.com/spf13/cobra"
)

// New returns the command completion of a program.
func New(program string) *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:                   "completion bash|zsh|fish",
		DisableFlagsInUseLine: true,
		Short:                 "print a completion script for a shell",
		Long: strings.ReplaceAll(`Prints a script with which a shell completes PROGRAM's commands, flags, and the
names that they take.`, "PROGRAM", program),
		Example: strings.ReplaceAll(`  # for this session
  source <(PROGRAM completion bash)

  # for every session, system-wide
  PROGRAM completion bash > /usr/share/bash-completion/completions/PROGRAM
  PROGRAM completion zsh > /usr/share/zsh/vendor-completions/_PROGRAM
  PROGRAM completion fish > /usr/share/fish/vendor_completions.d/PROGRAM.fish`, "PROGRAM", program),
		Args:      cobra.ExactArgs(1),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return hint.With(hint.Usagef("unknown shell %q", args[0]), hint.DidYouMean(args[0], shells))
		},
	}
}
