package networks

import (
	"cleat/cli/container"
	"cleat/cli/exit"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/netns/find"
	"cleat/network/why"

	"github.com/spf13/cobra"
)

func newWhy() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "why CONTAINER DESTINATION[:PORT[/udp]]",
		DisableFlagsInUseLine: true,
		Short:                 "find out why a container can't reach another",
		Long: `Tries from inside a container to reach a destination, and checks all that a
packet and its name need on the way: both ends and their links, the name server,
networks and their rules, routes, neighbours, other programs' firewall rules,
packet sizes, and whether a program listens. Then it says what is in the way,
and what to type.

CONTAINER is what ` + "`cleat net connect`" + ` takes, or NETWORK/NAME. DESTINATION may
also be a name on the container's networks, a DNS name, an address, or "host":
the host, as the container sees it. With PORT it connects by TCP, with PORT/udp
it sends a datagram, and without it sends a ping. It changes nothing.

On a network that spans hosts, either end may be on any host; CONTAINER@HOST
means that of a host. The source's host tries, and the destination's host says
how it is there, so cleat-node must run on them.

The exit code is 0 if the destination is reached, and 1 if not.`,
		Example: `  cleat net why front api:5432
  cleat net why web/front db/api:53/udp
  cleat net why front www.example.com:443

  # from and to containers of any hosts
  cleat net why front@b db@c:5432

  # a published port
  cleat net why front host:8080 --json`,
		ValidArgsFunction: completeWhy,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return hint.With(hint.Usagef("want a container and a destination"), "e.g. `cleat net why front api:5432`")
			}
			to, err := why.ParseDestination(args[1])
			if err != nil {
				return hint.With(hint.Usage(err), "e.g. api:5432, api:53/udp, web/api or [fd00:20::2]:80")
			}
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			a, err := askWhy(cmd.Context(), cfg, why.Question{From: args[0], To: to})
			if err != nil {
				return WithHint(err)
			}
			if asJSON {
				err = term.WriteJSON(cmd.OutOrStdout(), a)
			} else {
				err = a.WriteText(cmd.OutOrStdout())
			}
			if err == nil && !a.Reached {
				err = exit.Status(exit.Failed) // the answer has been printed
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// completeWhy completes both ends: containers and, for the second, the host.
func completeWhy(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	words := container.Complete(cmd, func(f *find.Found) bool { return !f.Host })
	words = append(words, containersElsewhere(cmd)...)
	if len(args) == 1 {
		words = append(words, why.Host)
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
