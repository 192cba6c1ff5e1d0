package container

import (
	"os"
	"slices"
	"strconv"

	"cleat/internal/columns"
	"cleat/netns/find"

	"github.com/spf13/cobra"
)

// CompleteTwo completes two containers or named namespaces.
func CompleteTwo(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) >= 2 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	words := Complete(cmd, func(*find.Found) bool { return true })
	return slices.DeleteFunc(words, func(w string) bool { return slices.Contains(args, w) }), cobra.ShellCompDirectiveDefault
}

// Complete returns the names of running containers for which wanted is true, qualified by the
// engine if they are ambiguous.
func Complete(cmd *cobra.Command, wanted func(*find.Found) bool) []string {
	all, _, err := find.All(cmd.Context())
	if err != nil {
		return nil
	}
	count := map[string]int{}
	for _, f := range all {
		count[f.Name]++
	}
	var words []string
	for _, f := range all {
		_, notPID := strconv.Atoi(f.Name)
		switch {
		case !wanted(f):
		case f.Name == "" || count[f.Name] > 1 || notPID == nil || f.Owner != 0 && f.Owner != os.Geteuid():
			words = append(words, f.Ref())
		default:
			words = append(words, f.Name)
		}
	}
	return Pasteable(words)
}

// Pasteable returns the words that need no quotes in a shell. The slice is modified.
func Pasteable(words []string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w != columns.Word(w) })
}
