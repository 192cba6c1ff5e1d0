package container

import (
	"os"
	"slices"
	"strconv"

	"cleat/internal/columns"
	"cleat/netns/find"

	"github.com/spf13/cobra"
)

// PID is the process id that a person typed; 0: it is none.
func PID(ref string) int {
	pid, err := strconv.Atoi(ref)
	if err != nil {
		return 0
	}
	return pid
}

// CompleteTwo offers two containers, or names of namespaces.
func CompleteTwo(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) >= 2 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	words := Complete(cmd, func(*find.Found) bool { return true })
	return slices.DeleteFunc(words, func(w string) bool { return slices.Contains(args, w) }), cobra.ShellCompDirectiveDefault
}

// Complete offers what runs, and is wanted: by its name, and with its
// engine in front where several have that.
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
		switch {
		case !wanted(f):
		case f.Name == "" || count[f.Name] > 1 || PID(f.Name) != 0 || f.Owner != 0 && f.Owner != os.Geteuid():
			words = append(words, f.Ref())
		default:
			words = append(words, f.Name)
		}
	}
	return Pasteable(words)
}

// Pasteable are the words that mean themselves to a shell, which is given them as they are.
func Pasteable(words []string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w != columns.Word(w) })
}
