package help

import (
	"strings"

	"github.com/spf13/cobra"
)

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
