package help

import (
	"fmt"
	"io"
	"strings"

	"cleat/cli/hint"

	"github.com/spf13/cobra"
)

// Columns is the greatest width of help.
const Columns = 80

// New returns the command help.
func New() *cobra.Command {
	return &cobra.Command{
		Use:                   "help [COMMAND]",
		DisableFlagsInUseLine: true,
		Short:                 "print the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil {
				return hint.BeforeStart(cmd, err)
			}
			if len(rest) > 0 {
				return hint.NoCommand(topic, rest)
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}

// Print writes the help of a command: description, usage, subcommands, flags and examples.
func Print(w io.Writer, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n", strings.TrimSpace(text))
	if cmd.Runnable() {
		fmt.Fprintf(w, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() && !strings.HasSuffix(cmd.Use, " COMMAND") {
		fmt.Fprintf(w, "  %s COMMAND [flags]\n", cmd.CommandPath())
	}
	PrintCommands(w, cmd)
	printFlags(w, Flags(cmd))
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nMore: `%s COMMAND --help`\n", cmd.CommandPath())
	}
}

// PrintCommands lists the subcommands of cmd, by group if it has groups.
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

// EachCommand calls f for root and all commands below it.
func EachCommand(root *cobra.Command, f func(*cobra.Command)) {
	f(root)
	for _, c := range root.Commands() {
		EachCommand(c, f)
	}
}
