package help

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/internal/columns"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A FlagGroup is a heading with flags.
type FlagGroup struct {
	Heading string
	Flags   []*pflag.Flag
}

// groupsKey is the key of a command's annotation that has its groups of flags, one on a line:
// heading, tab, names of flags with spaces between them.
const groupsKey = "flag groups"

// Group lists flags of cmd under a heading of their own. Groups appear in the order of the
// calls; flags that are in no group follow.
func Group(cmd *cobra.Command, heading string, flags ...string) {
	for _, name := range flags {
		if cmd.Flags().Lookup(name) == nil {
			panic("no flag --" + name)
		}
	}
	annotate(cmd, groupsKey, heading+"\t"+strings.Join(flags, " "))
}

func annotate(cmd *cobra.Command, key, line string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[key] += line + "\n"
}

// Flags returns the visible flags of a command by group, including those that it inherits.
func Flags(cmd *cobra.Command) []FlagGroup {
	rest := visible(cmd.NonInheritedFlags())
	var groups []FlagGroup
	for line := range strings.Lines(cmd.Annotations[groupsKey]) {
		heading, names, _ := strings.Cut(strings.TrimSpace(line), "\t")
		g := FlagGroup{Heading: heading}
		for _, name := range strings.Fields(names) {
			if i := slices.IndexFunc(rest, func(f *pflag.Flag) bool { return f.Name == name }); i >= 0 {
				g.Flags = append(g.Flags, rest[i])
				rest = slices.Delete(rest, i, i+1)
			}
		}
		groups = append(groups, g)
	}
	heading := "Flags"
	if len(groups) > 0 {
		heading = "Other flags"
	}
	groups = append(groups, FlagGroup{heading, rest}, FlagGroup{"Flags of every command", visible(cmd.InheritedFlags())})
	return slices.DeleteFunc(groups, func(g FlagGroup) bool { return len(g.Flags) == 0 })
}

// visible returns the flags that are not hidden, sorted by name.
func visible(set *pflag.FlagSet) []*pflag.Flag {
	var flags []*pflag.Flag
	set.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags = append(flags, f)
		}
	})
	return flags
}

// Describe returns how a flag is written ("-p, --publish PORTS"), and what it does, with its
// default. The usage text of a flag that has a value names it in backquotes
// (pflag.UnquoteUsage).
func Describe(f *pflag.Flag) (syntax, usage string) {
	value, usage := pflag.UnquoteUsage(f)
	if f.Value.Type() == "bool" { // has no value; backquotes are a command's
		value, usage = "", f.Usage
	}
	syntax = "    --" + f.Name
	if f.Shorthand != "" {
		syntax = "-" + f.Shorthand + ", --" + f.Name
	}
	switch {
	case f.NoOptDefVal != "" && value != "":
		syntax += "[=" + value + "]"
	case value != "":
		syntax += " " + value
	}
	if !slices.Contains([]string{"", "0", "0s", "[]", "false"}, f.DefValue) {
		usage += " (default " + f.DefValue + ")"
	}
	return syntax, usage
}

// maxSyntax is the width up to which a flag stands beside what it does. Longer ones have a
// line of their own.
const maxSyntax = 26

// printFlags writes groups of flags, with what they do in one column for all groups.
func printFlags(w io.Writer, groups []FlagGroup) {
	width := 0
	for _, g := range groups {
		for _, f := range g.Flags {
			if syntax, _ := Describe(f); len(syntax) <= maxSyntax {
				width = max(width, len(syntax))
			}
		}
	}
	for _, g := range groups {
		fmt.Fprintf(w, "\n%s:\n", g.Heading)
		for _, f := range g.Flags {
			syntax, usage := Describe(f)
			lines := columns.Break(usage, Columns-width-4)
			if len(syntax) > width {
				fmt.Fprintf(w, "  %s\n", syntax)
				syntax = ""
			}
			for _, line := range lines {
				fmt.Fprintf(w, "  %-*s  %s\n", width, syntax, line)
				syntax = ""
			}
		}
	}
}
