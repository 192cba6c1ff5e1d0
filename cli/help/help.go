package help

import (
	"fmt"
	"io"
	"strings"

	"cleat/cli/hint"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func New() *cobra.Command {
	return &cobra.Command{
		Use:                   "help [COMMAND]",
		DisableFlagsInUseLine: true,
		Short:                 "tell more about a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return hint.BeforeStart(cmd, err)
			}
			if len(rest) > 0 {
				return hint.NoCommand(about, rest)
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// Print writes the manual in brief of one command: what it is, how it is
// called, its commands, flags and examples.
func Print(w io.Writer, cmd *cobra.Command) {
	about := cmd.Long
	if about == "" {
		about = cmd.Short
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n", strings.TrimSpace(about))
	if cmd.Runnable() {
		fmt.Fprintf(w, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() && !strings.HasSuffix(cmd.Use, " COMMAND") {
		fmt.Fprintf(w, "  %s COMMAND [flags]\n", cmd.CommandPath())
	}
	PrintCommands(w, cmd)
	printFlags(w, "Flags", cmd.NonInheritedFlags())
	printFlags(w, "Flags of every command", cmd.InheritedFlags())
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n`%s COMMAND --help` tells more.\n", cmd.CommandPath())
	}
}

// PrintCommands lists the commands below cmd, by group where it has groups.
func PrintCommands(w io.Writer, cmd *cobra.Command) {
	groups := cmd.Groups()
	if len(groups) == 0 {
		groups = []*cobra.Group{{Title: "Commands"}}
	}
	for _, g := range groups {
		heading := "\n" + g.Title + ":\n"
		for _, c := range cmd.Commands() {
			if c.GroupID != g.ID || !c.IsAvailableCommand() {
				continue
			}
			fmt.Fprintf(w, "%s  %-*s  %s\n", heading, cmd.NamePadding(), c.Name(), c.Short)
			heading = ""
		}
	}
}

// Columns is how wide help is at most.
const Columns = 80

func printFlags(w io.Writer, title string, flags *pflag.FlagSet) {
	if flags.HasAvailableFlags() {
		fmt.Fprintf(w, "\n%s:\n%s", title, flags.FlagUsagesWrapped(Columns))
	}
}

// EachCommand calls f for root and everything below it.
func EachCommand(root *cobra.Command, f func(*cobra.Command)) {
	f(root)
	for _, c := range root.Commands() {
		EachCommand(c, f)
	}
}
