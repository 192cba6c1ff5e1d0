package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newManCmd() *cobra.Command {
	return &cobra.Command{
		Use:                   "man DIR",
		DisableFlagsInUseLine: true,
		Short:                 "write the manual pages into a directory",
		Long: `Write one manual page for each command into DIR, which is made if need be:
cleat.1, cleat-bench.1 and so on. They say what --help says. SOURCE_DATE_EPOCH
sets their date.`,
		Example: `  cleat man out/man
  man out/man/cleat.1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pages, err := writeManual(cmd.Root(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d pages in %s\n", pages, args[0])
			return err
		},
	}
}

// writeManual writes the manual pages of root and all commands below it into
// dir and returns how many there are.
func writeManual(root *cobra.Command, dir string) (int, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, fmt.Errorf("make manual directory: %w", err)
	}
	eachCommand(root, func(c *cobra.Command) {
		c.DisableAutoGenTag = true
		c.InitDefaultVersionFlag()
		c.Long = asMarkdown(c.Long)
	})
	header := &doc.GenManHeader{Section: "1", Source: "cleat " + root.Version, Manual: "Cleat Manual"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return 0, fmt.Errorf("write manual pages: %w", err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, root.Name()+"*.1"))
	return len(pages), err
}

// asMarkdown keeps the lines of a help text that are indented as they are:
// cobra takes the text for Markdown, where they would run together.
func asMarkdown(text string) string {
	var b strings.Builder
	before := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			if !strings.HasPrefix(before, "  ") {
				b.WriteString("\n")
			}
			b.WriteString("    ")
		}
		b.WriteString(line)
		before = line
	}
	return b.String()
}
