package man

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"cleat/cli/help"
	"cleat/cli/term"

	"github.com/spf13/cobra"
)

// New returns the command man of a program.
func New(program string) *cobra.Command {
	return &cobra.Command{
		Use:                   "man DIR",
		DisableFlagsInUseLine: true,
		Short:                 "write the manual pages to a directory",
		Long: fmt.Sprintf(`Writes one manual page for each command to DIR, which is created if it is
missing: %s.1 and so on. They have the text of --help, the exit statuses
and the files. SOURCE_DATE_EPOCH sets their date.`, program),
		Example: fmt.Sprintf("  %s man out/man\n  man out/man/%[1]s.1", program),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pages, err := Write(cmd.Root(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s in %s\n", term.Count(pages, "page"), args[0])
			return err
		},
	}
}

// Write writes the manual pages of root and of the commands below it that help lists. It
// returns the number of pages.
func Write(root *cobra.Command, dir string) (int, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, fmt.Errorf("create manual directory: %w", err)
	}
	date, err := manualDate()
	if err != nil {
		return 0, err
	}
	var pages int
	var errs []error
	help.EachCommand(root, func(c *cobra.Command) {
		if c != root && !c.IsAvailableCommand() {
			return
		}
		pages++
		errs = append(errs, os.WriteFile(filepath.Join(dir, pageName(c)+".1"), []byte(manPage(c, date)), 0o644))
	})
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("write manual pages: %w", err)
	}
	return pages, nil
}

// manualDate returns SOURCE_DATE_EPOCH, in seconds since 1970, or today.
func manualDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Now(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage returns the manual page of a command, in the macros of man(7). cobra's own
// generator would do, but it imports a Markdown parser that compiles patterns whenever the
// program starts, which takes half a millisecond.
func manPage(c *cobra.Command, date time.Time) string {
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	var b strings.Builder
	fmt.Fprintf(&b, ".nh\n.TH %q \"1\" %q %q \"Cleat Manual\"\n",
		strings.ToUpper(pageName(c)), date.Format("Jan 2006"), "cleat "+c.Root().Version)
	section := func(title, text string) {
		if strings.TrimSpace(text) != "" {
			fmt.Fprintf(&b, ".SH %s\n%s", title, text)
		}
	}
	section("NAME", fmt.Sprintf("%s \\- %s\n", roffText(pageName(c)), roffText(c.Short)))
	section("SYNOPSIS", roffExample(strings.Join(help.Synopsis(c), "\n")))
	section("DESCRIPTION", roffParagraphs(help.Description(c)))
	section("COMMANDS", commands(c))
	section("OPTIONS", options(c))
	if c.Runnable() && !c.DisableFlagParsing { // pasta and others have their own
		section("EXIT STATUS", definitions(help.Statuses(c)))
	}
	section("FILES", definitions(help.Files(c)))
	section("EXAMPLES", roffExample(c.Example))
	section("SEE ALSO", related(c))
	return b.String()
}

// commands lists the subcommands of a command, with headings if they are in groups.
func commands(c *cobra.Command) string {
	var b strings.Builder
	groups := help.Commands(c)
	for _, g := range groups {
		if len(groups) > 1 {
			fmt.Fprintf(&b, ".SS %s\n", roffText(g.Heading))
		}
		var list [][2]string
		for _, sub := range g.Commands {
			list = append(list, [2]string{sub.Name(), sub.Short})
		}
		b.WriteString(definitions(list))
	}
	return b.String()
}

// options lists the flags of a command, with headings if they are in groups.
func options(c *cobra.Command) string {
	var b strings.Builder
	groups := help.Flags(c)
	for _, g := range groups {
		if len(groups) > 1 {
			fmt.Fprintf(&b, ".SS %s\n", roffText(g.Heading))
		}
		var list [][2]string
		for _, f := range g.Flags {
			syntax, usage := help.Describe(f)
			list = append(list, [2]string{strings.TrimSpace(syntax), usage})
		}
		b.WriteString(definitions(list))
	}
	return b.String()
}

// definitions sets pairs of a term and its meaning.
func definitions(list [][2]string) string {
	var b strings.Builder
	for _, d := range list {
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s", roffText(d[0]), roffLine(d[1]))
	}
	return b.String()
}

// related names the pages of the commands above and below.
func related(c *cobra.Command) string {
	var pages []string
	add := func(other *cobra.Command) { pages = append(pages, `\fB`+roffText(pageName(other))+`\fR(1)`) }
	if c.HasParent() {
		add(c.Parent())
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			add(sub)
		}
	}
	if len(pages) == 0 {
		return ""
	}
	return strings.Join(pages, ", ") + "\n"
}
