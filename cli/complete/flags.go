package complete

import (
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Words offers fixed words for a flag.
func Words(cmd *cobra.Command, flag string, words []string) {
	complete := cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag was just defined
	}
}

// List offers words for a flag that takes several, separated by commas:
// what stands before the last comma stays, and is not offered again.
func List(cmd *cobra.Command, flag string, words []string) {
	complete := func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndex(typed, ",")+1]
		taken := strings.Split(before, ",")
		var offers []string
		for _, w := range words {
			if !slices.Contains(taken, w) && strings.HasPrefix(before+w, typed) {
				offers = append(offers, before+w)
			}
		}
		return offers, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag was just defined
	}
}

// Devices offers the devices of this network namespace.
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
