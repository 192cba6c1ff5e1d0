package networks

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/cli/container"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/internal/rate"
	"cleat/link"
	"cleat/netns/find"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

type connectFlags struct {
	wanted    named.Connection
	addresses []string
	mac       string
	ports     []string
	rate      string
	labels    []string
	bypass    bool
	json      bool
}

func newConnect() *cobra.Command {
	f := &connectFlags{}
	cmd := &cobra.Command{
		Use:                   "connect NETWORK CONTAINER [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "connect a container to a network",
		Long: `Gives a running container a link to a network, with an address, a name there and
published ports. It keeps all of them when it restarts. CONTAINER is what
` + "`cleat attach`" + ` takes: a container's name or id, a process id, a name that
` + "`ip netns`" + ` lists, or the path of a network namespace.

On the network, containers find each other by their names, by the first digits
of their ids and by their aliases, also as NAME.NETWORK.

A published port obeys the host's firewall: whom its input rules refuse for a
service of the host, they refuse for the container's. On a network that spans
hosts, HOST-ADDRESS may be "everywhere": then all hosts publish the port.`,
		Example: `  cleat net connect web api --alias db --ip 10.20.0.5

  # port 80 of the container on port 8080 of the host, from the host only
  cleat net connect web front -p 127.0.0.1:8080:80

  # port 8080 of all hosts
  cleat net connect web shop -p everywhere:8080:80

  # ten ports, UDP, IPv6
  cleat net connect web voip -p "[::]:5000-5009:5000-5009/udp"`,
		ValidArgsFunction: completeConnect,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.addresses, "ip", nil, "`ADDRESS` of the container, at most one for IPv4 and one for IPv6 (default: free ones)")
	flags.StringVar(&f.mac, "mac", "", "Ethernet address `MAC` (default: random, and the same after a restart)")
	flags.StringSliceVar(&f.wanted.Aliases, "alias", nil, "another `NAME` on the network, which several containers may have")
	flags.StringArrayVarP(&f.ports, "publish", "p", nil, "publish a port on the host: `[HOST-ADDRESS:][HOST-PORT:]PORT[/PROTOCOL]`; may be repeated")
	flags.BoolVar(&f.bypass, "bypass-firewall", false, "publish to all, even to whom the host's input rules refuse")
	flags.StringVar(&f.rate, "rate", "", "limit each direction to `RATE` bit/s, e.g. 100M")
	flags.StringVar(&f.wanted.Interface, "interface", "", "`NAME` of the link in the container (default: the first free of eth0, eth1, …)")
	flags.BoolVar(&f.wanted.NoDNS, "no-dns", false, "leave the container's resolv.conf alone")
	flags.StringArrayVar(&f.labels, "label", nil, "`NAME=VALUE`, for rules; may be repeated")
	flags.BoolVar(&f.json, "json", false, "print a JSON object")
	help.Group(cmd, "Addresses and names", "ip", "mac", "alias", "no-dns")
	help.Group(cmd, "Ports", "publish", "bypass-firewall")
	return cmd
}

func (f *connectFlags) run(cmd *cobra.Command, args []string) error {
	if err := checkNetworkAndContainer(cmd, args); err != nil {
		return err
	}
	if err := f.parse(); err != nil {
		return err
	}
	cfg, err := config(cmd)
	if err != nil {
		return err
	}
	cfg.Attach.Background = container.CallerOf(cmd.Context()).Background
	got, err := named.Connect(cmd.Context(), cfg, args[0], args[1], f.wanted)
	if err != nil {
		return WithHint(err)
	}
	startKeeper(cmd.Context(), cfg, got)
	if f.json {
		return printJSON(cmd.OutOrStdout(), got)
	}
	return printResult(cmd.OutOrStdout(), got, connected(got))
}

// connected says what a container has got.
func connected(got *named.Result) string {
	e := got.Endpoint
	text := fmt.Sprintf("%s is on %s: %s", e.Container.ShortName(), e.Network, e.Interface)
	for _, a := range e.Addresses {
		text += " " + a.String()
	}
	if len(e.Names) > 0 {
		text += ", name " + strings.Join(e.Names, ", ")
	}
	for _, p := range e.Wanted.Ports {
		text += ", port " + p.String()
	}
	return text
}

func checkNetworkAndContainer(cmd *cobra.Command, args []string) error {
	if len(args) == 2 {
		return nil
	}
	return hint.With(hint.Usagef("%s: want a network and a container", cmd.CommandPath()),
		fmt.Sprintf("e.g. `%s web api`; `cleat net ls` lists networks", cmd.CommandPath()))
}

func (f *connectFlags) parse() error {
	c := &f.wanted
	for _, text := range f.addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return hint.With(hint.Usagef("--ip %s: want an IP address without a prefix length", text), "e.g. --ip 10.20.0.5")
		}
		c.Addresses = append(c.Addresses, a)
	}
	var err error
	if f.mac != "" {
		if c.MAC, err = link.ParseMAC(f.mac); err != nil || c.MAC == (link.MAC{}) {
			return hint.Usagef("--mac %s: want six hexadecimal bytes, e.g. 02:00:5e:10:00:01", f.mac)
		}
	}
	if c.Ports, err = parsePorts(f.ports, f.bypass); err != nil {
		return err
	}
	if f.rate != "" {
		r, err := rate.Parse(f.rate)
		if err != nil {
			return hint.Usagef("--rate: %w", err)
		}
		c.RateBitsPerSec = int64(r)
	}
	c.Labels, err = parseLabels(f.labels)
	return err
}

func parsePorts(texts []string, bypass bool) ([]named.Port, error) {
	var ports []named.Port
	for _, text := range texts {
		p, err := named.ParsePort(text)
		if err != nil {
			return nil, WithHint(err)
		}
		p.BypassFirewall = bypass
		ports = append(ports, p)
	}
	return ports, nil
}

func newDisconnect() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "disconnect NETWORK CONTAINER",
		DisableFlagsInUseLine: true,
		Short:                 "remove a container from a network",
		Long: `Removes a container's link to a network, its names there and its published
ports. Its address is noted for a container of its name. The container need not
run any more.`,
		Example:           `  cleat net disconnect web api`,
		ValidArgsFunction: completeConnected,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkNetworkAndContainer(cmd, args); err != nil {
				return err
			}
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			got, err := named.Disconnect(cmd.Context(), cfg, args[0], args[1])
			if err != nil {
				return WithHint(err)
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), got)
			}
			return printNotes(cmd.OutOrStdout(), got.Notes)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func completeNetworks(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return networkNames(cmd), cobra.ShellCompDirectiveNoFileComp
}

func networkNames(cmd *cobra.Command) []string {
	cfg, err := config(cmd)
	if err != nil {
		return nil
	}
	all, _ := named.Store{Store: cfg.Attach.Store}.Networks()
	var names []string
	for _, n := range all {
		names = append(names, n.Name)
	}
	return names
}

func completeConnect(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return networkNames(cmd), cobra.ShellCompDirectiveNoFileComp
	case 1:
		return container.Complete(cmd, func(f *find.Found) bool { return !f.Host }), cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func completeConnected(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return networkNames(cmd), cobra.ShellCompDirectiveNoFileComp
	case 1:
		return connectedContainers(cmd, args), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// connectedContainers returns the names of the containers on some networks.
func connectedContainers(cmd *cobra.Command, networks []string) []string {
	cfg, err := config(cmd)
	if err != nil {
		return nil
	}
	var words []string
	for _, network := range networks {
		all, _ := named.Store{Store: cfg.Attach.Store}.Endpoints(network)
		for _, e := range all {
			if name := e.Container.ShortName(); !slices.Contains(words, name) {
				words = append(words, name)
			}
		}
	}
	return container.Pasteable(words)
}
