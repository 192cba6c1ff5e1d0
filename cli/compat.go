package cli

import (
	"cleat/cli/exit"
	"cleat/compat"

	"github.com/spf13/cobra"
)

// newCompatCommands returns the programs that cleat replaces as commands, for the help.
// compat.Lookup finds them before there are commands.
func newCompatCommands() []*cobra.Command {
	var cmds []*cobra.Command
	for _, p := range compat.Programs() {
		group := groupRun
		if p.Wires {
			group = groupWire
		}
		cmds = append(cmds, &cobra.Command{
			Use:                   p.Name + " [OPTION…]",
			GroupID:               group,
			DisableFlagsInUseLine: true,
			DisableFlagParsing:    true,
			Short:                 p.Summary,
			Long:                  p.Text,
			RunE:                  func(_ *cobra.Command, args []string) error { return exit.Status(p.Main(args, Version())) },
		})
	}
	return cmds
}
