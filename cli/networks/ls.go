package networks

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

func newLs() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "ls [NETWORK]",
		DisableFlagsInUseLine: true,
		Short:                 "list networks, or the containers on one",
		Long: `Lists networks with their driver, addresses and number of containers or, with
NETWORK, the containers on it with their addresses, names, ports and state. Of a
network that spans hosts it lists the containers of all hosts.`,
		Example: `  cleat net ls
  cleat net ls web --json`,
		ValidArgsFunction: completeNetworks,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			switch len(args) {
			case 0:
				return listNetworks(cmd.OutOrStdout(), cfg, asJSON)
			case 1:
				return listEndpoints(cmd, cfg, args[0], asJSON)
			}
			return hint.Usagef("want at most one network")
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func listNetworks(out io.Writer, cfg named.Config, asJSON bool) error {
	all, err := named.List(cfg)
	if asJSON {
		return errors.Join(term.WriteJSONLine(out, term.OrEmpty(all)), err)
	}
	t := term.NewTable(out)
	t.Row("NETWORK", "DRIVER", "SUBNETS", "CONTAINERS", "STATE")
	for _, n := range all {
		count := fmt.Sprint(n.Containers)
		if n.Spans {
			count = fmt.Sprintf("%d here, %d elsewhere", n.Containers, n.ElsewhereCount)
		}
		t.Row(n.Name, driverText(n.Network), term.OrDash(subnetsText(n.Network)), count, stateText(n))
	}
	return errors.Join(t.Flush(), err)
}

func driverText(n *named.Network) string {
	text := n.Driver
	if n.Parent != "" {
		text += " on " + n.Parent
	}
	if n.VLAN != 0 {
		text += fmt.Sprintf(" vlan %d", n.VLAN)
	}
	if n.Internal {
		text += ", internal"
	}
	if n.Spans {
		text += ", spans hosts"
	}
	return text
}

func subnetsText(n *named.Network) string {
	var texts []string
	for _, sub := range n.Subnets {
		texts = append(texts, sub.Prefix.String())
	}
	if n.DHCP {
		texts = append(texts, "DHCP")
	}
	return strings.Join(texts, ",")
}

func stateText(n named.NetworkStatus) string {
	if len(n.Missing) == 0 {
		return "up"
	}
	return "incomplete"
}

func listEndpoints(cmd *cobra.Command, cfg named.Config, network string, asJSON bool) error {
	s, err := named.Inspect(cmd.Context(), cfg, network)
	if s == nil {
		return WithHint(err)
	}
	out := cmd.OutOrStdout()
	if asJSON {
		all := []any{}
		for _, e := range s.Endpoints {
			all = append(all, e)
		}
		for _, e := range s.Elsewhere {
			all = append(all, e)
		}
		return errors.Join(term.WriteJSONLine(out, all), err)
	}
	return errors.Join(printEndpoints(cmd, cfg, s), err)
}

func printEndpoints(cmd *cobra.Command, cfg named.Config, s *named.NetworkStatus) error {
	if s.Spans {
		return printSpanned(cmd, cfg, s)
	}
	all := s.Endpoints
	t := term.NewTable(cmd.OutOrStdout())
	t.Row("CONTAINER", "ENGINE", "LINK", "ADDRESSES", "NAMES", "PORTS", "STATE")
	for _, e := range all {
		t.Row(e.Container.ShortName(), e.Container.Engine, e.Interface, term.OrDash(join(e.Addresses)), term.OrDash(strings.Join(e.Names, ",")), term.OrDash(join(e.Wanted.Ports)), string(e.State))
	}
	return t.Flush()
}

func join[T fmt.Stringer](all []T) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ",")
}

func newInspect() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:                   "inspect NETWORK",
		DisableFlagsInUseLine: true,
		Short:                 "show a network in detail",
		Long: `Shows the parameters of a network, what of it is missing in the kernel, and the
containers on it.`,
		Example: `  cleat net inspect web
  cleat net inspect web --json`,
		ValidArgsFunction: completeNetworks,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return hint.With(hint.Usagef("want one network"), "`cleat net ls` lists them")
			}
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			s, err := named.Inspect(cmd.Context(), cfg, args[0])
			if s == nil {
				return WithHint(err)
			}
			if asJSON {
				return errors.Join(term.WriteJSONLine(cmd.OutOrStdout(), s), err)
			}
			return errors.Join(printNetwork(cmd, cfg, s), err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func printNetwork(cmd *cobra.Command, cfg named.Config, s *named.NetworkStatus) error {
	out := cmd.OutOrStdout()
	t := term.NewTable(out)
	line := func(name, value string) {
		if value != "" {
			t.Row(name, value)
		}
	}
	line("network", s.Name)
	line("driver", driverText(s.Network))
	line("device", s.Device)
	for _, sub := range s.Subnets {
		line("subnet", fmt.Sprintf("%s, gateway %s, %d of %s addresses taken", sub.Prefix, sub.Gateway, s.Taken[sub.Prefix.String()], sizeText(sub.Prefix)))
	}
	for i, r := range s.Reserve.Lines() {
		line([]string{"reserved", " "}[min(i, 1)], r)
	}
	line("host access", s.HostAccess)
	if s.LargeSegments {
		line("segments", "large")
	}
	if s.Forwards != nil {
		line("datapath", s.Forwards.By+": "+s.Forwards.Why)
	}
	if s.DefaultDeny {
		line("default", "deny")
	}
	for i, r := range s.Rules {
		line([]string{"rules", " "}[min(i, 1)], r)
	}
	line("created", term.Time(s.Created))
	for _, m := range s.Missing {
		line("missing", m)
	}
	if s.Span != nil {
		line("blocks", strings.Join(prefixTexts(s.Span.Blocks), ", "))
	}
	if err := t.Flush(); err != nil || len(s.Endpoints)+len(s.Elsewhere) == 0 {
		return err
	}
	if _, err := io.WriteString(out, "\n"); err != nil {
		return err
	}
	return printEndpoints(cmd, cfg, s)
}

// sizeText returns how many addresses a prefix has.
func sizeText(p netip.Prefix) string {
	bits := p.Addr().BitLen() - p.Bits()
	if bits > 24 {
		return fmt.Sprintf("2^%d", bits)
	}
	return fmt.Sprint(1 << bits)
}
