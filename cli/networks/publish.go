package networks

import (
	"strings"

	"cleat/cli/hint"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

func newPublish() *cobra.Command {
	network, bypass, asJSON := "", false, false
	cmd := &cobra.Command{
		Use:                   "publish CONTAINER PORT...",
		DisableFlagsInUseLine: true,
		Short:                 "publish ports of a connected container on the host",
		Long: `Publishes more ports of a container that is on a network. PORT is
[HOST-ADDRESS:][HOST-PORT:]PORT[/PROTOCOL]; without HOST-PORT a free one is
chosen. A port that a program of the host has is refused. On a network that
spans hosts, HOST-ADDRESS may be "everywhere": all hosts publish the port.`,
		Example: `  cleat net publish front 8080:80
  cleat net publish front everywhere:8080:80
  cleat net publish front 127.0.0.1:5353:53/udp "[::1]:5353:53/udp"`,
		ValidArgsFunction: completeAnyConnected,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return hint.With(hint.Usagef("want a container and at least one port"), "e.g. `cleat net publish front 8080:80`")
			}
			ports, err := parsePorts(args[1:], bypass)
			if err != nil {
				return err
			}
			return changePorts(cmd, asJSON, func(cfg named.Config) (*named.Result, error) {
				return named.Publish(cmd.Context(), cfg, network, args[0], ports)
			})
		},
	}
	cmd.Flags().StringVar(&network, "network", "", "the `NETWORK`, if the container is on several")
	cmd.Flags().BoolVar(&bypass, "bypass-firewall", false, "publish to all, even to whom the host's input rules refuse")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newUnpublish() *cobra.Command {
	network, asJSON := "", false
	cmd := &cobra.Command{
		Use:                   "unpublish CONTAINER [PORT...]",
		DisableFlagsInUseLine: true,
		Short:                 "withdraw published ports",
		Long: `Withdraws published ports of a container, or all of them if none is given. PORT
without HOST-PORT is found by the container's port.`,
		Example: `  cleat net unpublish front 8080:80
  cleat net unpublish front`,
		ValidArgsFunction: completeAnyConnected,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return hint.With(hint.Usagef("want a container"), "e.g. `cleat net unpublish front 8080:80`")
			}
			ports, err := parsePorts(args[1:], false)
			if err != nil {
				return err
			}
			return changePorts(cmd, asJSON, func(cfg named.Config) (*named.Result, error) {
				return named.Unpublish(cmd.Context(), cfg, network, args[0], ports)
			})
		},
	}
	cmd.Flags().StringVar(&network, "network", "", "the `NETWORK`, if the container is on several")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func changePorts(cmd *cobra.Command, asJSON bool, change func(named.Config) (*named.Result, error)) error {
	cfg, err := config(cmd)
	if err != nil {
		return err
	}
	got, err := change(cfg)
	if err != nil {
		return WithHint(err)
	}
	if asJSON {
		return printJSON(cmd.OutOrStdout(), got)
	}
	text := got.Endpoint.Container.ShortName() + " publishes no port"
	if len(got.Endpoint.Wanted.Ports) > 0 {
		text = got.Endpoint.Container.ShortName() + " publishes " + strings.ReplaceAll(join(got.Endpoint.Wanted.Ports), ",", ", ")
	}
	return printResult(cmd.OutOrStdout(), got, text)
}

// completeAnyConnected completes a container that is on a network.
func completeAnyConnected(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return connectedContainers(cmd, networkNames(cmd)), cobra.ShellCompDirectiveNoFileComp
}
