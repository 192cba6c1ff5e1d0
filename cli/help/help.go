package help

import (
	"fmt"
	"io"
	"strings"
	"sync"

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
		Long:                  "Prints the help of a command, as --help does.",
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
	fmt.Fprintf(w, "%s\n\nUsage:\n", strings.TrimSpace(Description(cmd)))
	for _, line := range Synopsis(cmd) {
		fmt.Fprintf(w, "  %s\n", line)
	}
	for _, g := range Commands(cmd) {
		fmt.Fprintf(w, "\n%s:\n", g.Heading)
		for _, c := range g.Commands {
			fmt.Fprintf(w, "  %-*s  %s\n", c.NamePadding(), c.Name(), c.Short)
		}
	}
	printFlags(w, Flags(cmd))
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nMore: `%s COMMAND --help`\n", cmd.CommandPath())
	}
}

// ends are the ends of descriptions that Add was given.
var ends sync.Map // from *cobra.Command to func() string

// Add adds text to a command's description. f takes a while, and is called only by those who print
// help.
func Add(cmd *cobra.Command, f func() string) { ends.Store(cmd, f) }

// Description returns the description of a command: Long, and what was added.
func Description(cmd *cobra.Command) string {
	if f, ok := ends.Load(cmd); ok {
		return cmd.Long + f.(func() string)()
	}
	return cmd.Long
}

// Synopsis returns the forms in which cmd is called.
func Synopsis(cmd *cobra.Command) []string {
	var lines []string
	if cmd.Runnable() {
		lines = append(lines, cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() && !strings.HasSuffix(cmd.Use, " COMMAND") {
		lines = append(lines, cmd.CommandPath()+" COMMAND [flags]")
	}
	return lines
}

// A CommandGroup is a heading with commands.
type CommandGroup struct {
	Heading  string
	Commands []*cobra.Command
}

// Commands returns the visible subcommands of cmd by group.
func Commands(cmd *cobra.Command) []CommandGroup {
	groups := cmd.Groups()
	if len(groups) == 0 {
		groups = []*cobra.Group{{Title: "Commands"}}
	}
	var all []CommandGroup
	for _, group := range groups {
		g := CommandGroup{Heading: group.Title}
		for _, c := range cmd.Commands() {
			if c.GroupID == group.ID && c.IsAvailableCommand() {
				g.Commands = append(g.Commands, c)
			}
		}
		if len(g.Commands) > 0 {
			all = append(all, g)
		}
	}
	return all
}

// EachCommand calls f for root and all commands below it.
func EachCommand(root *cobra.Command, f func(*cobra.Command)) {
	f(root)
	for _, c := range root.Commands() {
		EachCommand(c, f)
	}
}

// The keys of annotations that have lines of tab-separated pairs.
const (
	filesKey    = "files"
	statusesKey = "exit statuses"
)

// File adds a file to the manual page of cmd.
func File(cmd *cobra.Command, path, text string) { annotate(cmd, filesKey, path+"\t"+text) }

// Status adds an exit status to the manual page of cmd, after those of every command.
func Status(cmd *cobra.Command, code, text string) { annotate(cmd, statusesKey, code+"\t"+text) }

// Files returns pairs of a path and its description.
func Files(cmd *cobra.Command) [][2]string { return pairs(cmd.Annotations[filesKey]) }

// Statuses returns pairs of an exit status and its meaning.
func Statuses(cmd *cobra.Command) [][2]string {
	common := "0\tsuccess\n1\tfailure\n2\tthe command line is wrong; nothing was started\n"
	return append(pairs(common+cmd.Annotations[statusesKey]), [2]string{"128 + N", "ended by signal N; 130 after Ctrl-C"})
}

func pairs(lines string) [][2]string {
	var all [][2]string
	for line := range strings.Lines(lines) {
		name, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, [2]string{name, text})
	}
	return all
}
