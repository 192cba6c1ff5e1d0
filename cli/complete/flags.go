package complete

import (
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Flag registers the function that completes the value of a flag.
func Flag(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // there is no such flag
	}
}

// Words completes a flag with the given words. Without any, the shell completes nothing, not
// even names of files.
func Words(cmd *cobra.Command, flag string, words ...string) {
	Flag(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// List completes a flag that takes several words, separated by commas. Words before the last
// comma are kept, and not offered again.
func List(cmd *cobra.Command, flag string, words []string) {
	Flag(cmd, flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndex(typed, ",")+1]
		taken := strings.Split(before, ",")
		var offers []string
		for _, w := range words {
			if !slices.Contains(taken, w) && strings.HasPrefix(before+w, typed) {
				offers = append(offers, before+w)
			}
		}
		return offers, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}

// Devices completes with the devices of this network namespace.
func Devices(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
