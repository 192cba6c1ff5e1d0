package complete

import (
	"cleat/cli/hint"

	"github.com/spf13/cobra"
)

// New returns the command completion.
func New() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:                   "completion bash|zsh|fish",
		DisableFlagsInUseLine: true,
		Short:                 "print a completion script for a shell",
		Long: `Prints a script with which a shell completes cleat's commands, flags, presets
and networks.`,
		Example: `  # for this session
  source <(cleat completion bash)

  # for every session, system-wide
  cleat completion bash > /usr/share/bash-completion/completions/cleat
  cleat completion zsh > /usr/share/zsh/vendor-completions/_cleat
  cleat completion fish > /usr/share/fish/vendor_completions.d/cleat.fish`,
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
