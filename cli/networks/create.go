package networks

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/network/attach"
	"cleat/network/keep"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

type createFlags struct {
	spec     named.NetworkSpec
	subnets  []string
	gateways []string
	ranges   []string
	excludes []string
	reserve  []string
	dns      []string
	labels   []string
	json     bool
}

func newCreate() *cobra.Command {
	f := &createFlags{}
	cmd := &cobra.Command{
		Use:                   "create NETWORK [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "create a network",
		Long: `Creates a network that containers can be connected to. Without --subnet, free
addresses are chosen that neither the host nor another engine uses.

  bridge   a bridge on the host, which is the gateway (default)
  routed   no bridge: the host routes each address to its container
  macvlan  on the network of --parent, with an Ethernet address of its own
  ipvlan   on the network of --parent, with the parent's Ethernet address
  vlan     a VLAN of --parent`,
		Example: `  cleat net create web --subnet 10.20.0.0/24 --subnet fd00:20::/64

  # the container db always gets this address, and no other one does
  cleat net create shop --subnet 10.22.0.0/24 --reserve db=10.22.0.5

  # no way out
  cleat net create db --internal

  # on all hosts that cleat-node has joined
  cleat net create web --span

  # on the network of eth0, with addresses from its DHCP server
  cleat net create lan --driver macvlan --parent eth0 --dhcp`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.spec.Driver, "driver", named.Bridge, "`DRIVER`: "+strings.Join(named.Drivers(), ", "))
	flags.StringVar(&f.spec.Parent, "parent", "", "`DEVICE` of the host, for macvlan, ipvlan and vlan")
	flags.StringVar(&f.spec.Mode, "mode", "", "`MODE` of macvlan or ipvlan, as for `cleat attach`")
	flags.IntVar(&f.spec.VLAN, "vlan", 0, "VLAN `ID` of the parent, 1…4094")
	flags.StringSliceVar(&f.subnets, "subnet", nil, "`NETWORK/LENGTH` of the addresses, at most one for IPv4 and one for IPv6")
	flags.StringSliceVar(&f.gateways, "gateway", nil, "`ADDRESS` of a subnet's gateway (default: its first address)")
	flags.StringSliceVar(&f.ranges, "ip-range", nil, "choose addresses only from `NETWORK/LENGTH`")
	flags.StringSliceVar(&f.excludes, "exclude", nil, "never give out `ADDRESS`, or those of NETWORK/LENGTH")
	flags.StringArrayVar(&f.reserve, "reserve", nil, "keep an address of a subnet for a container: `NAME=ADDRESS[,ADDRESS]`; may be repeated")
	flags.BoolVar(&f.spec.IPv6, "ipv6", false, "choose a subnet for IPv6 as well")
	flags.BoolVar(&f.spec.DHCP, "dhcp", false, "get IPv4 addresses from a DHCP server of the parent's network")
	flags.BoolVar(&f.spec.Spans, "span", false, "on all hosts of the cluster of cleat-node, with names and addresses in common")
	flags.BoolVar(&f.spec.Internal, "internal", false, "no way out of the network")
	flags.BoolVar(&f.spec.NoNAT, "no-nat", false, "let packets leave the host with the containers' addresses")
	flags.StringVar(&f.spec.HostAccess, "host-access", named.HostGateway, "what containers reach of the host: `WHAT` is gateway, all or none")
	flags.IntVar(&f.spec.MTU, "mtu", 0, "MTU in `BYTES` (default: that of the host's uplink or of the parent)")
	flags.BoolVar(&f.spec.LargeSegments, "large-segments", false, "faster between containers, slower to other hosts: see doc/networks.md")
	flags.StringVar(&f.spec.Datapath, "datapath", named.DatapathAuto, "what forwards packets: `WHAT` is "+strings.Join(named.Datapaths(), ", ")+"; see doc/fastpath.md")
	flags.StringSliceVar(&f.dns, "dns", nil, "ask the name server `ADDRESS` for other names (default: the host's)")
	flags.StringArrayVar(&f.labels, "label", nil, "`NAME=VALUE`; may be repeated")
	flags.BoolVar(&f.json, "json", false, "print a JSON object")
	help.Group(cmd, "Addresses", "subnet", "gateway", "ip-range", "exclude", "reserve", "ipv6", "dhcp")
	help.Group(cmd, "Driver", "driver", "parent", "mode", "vlan", "mtu", "large-segments", "datapath")
	return cmd
}

func (f *createFlags) run(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return hint.With(hint.Usagef("want one name of a network"), "e.g. `cleat net create web`")
	}
	f.spec.Name = args[0]
	if err := f.parse(); err != nil {
		return err
	}
	cfg, err := config(cmd)
	if err != nil {
		return err
	}
	if f.spec.Spans && !cmd.Flags().Changed("driver") {
		f.spec.Driver = named.Routed
	}
	got, err := named.Create(cmd.Context(), cfg, f.spec)
	if err != nil {
		return WithHint(err)
	}
	startKeeper(cmd.Context(), cfg, got)
	noteBoot(cfg, got)
	if f.json {
		return printJSON(cmd.OutOrStdout(), got)
	}
	return printResult(cmd.OutOrStdout(), got, "network "+got.Network.String())
}

func (f *createFlags) parse() error {
	for _, text := range f.subnets {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return hint.With(hint.Usagef("--subnet %s: want a network with its prefix length", text), "e.g. --subnet 10.20.0.0/24")
		}
		f.spec.Subnets = append(f.spec.Subnets, named.Subnet{Prefix: p})
	}
	for _, text := range f.gateways {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return hint.With(hint.Usagef("--gateway %s: want an IP address", text), "e.g. --gateway 10.20.0.1")
		}
		sub, err := f.subnetOf("gateway", a)
		if err != nil {
			return err
		}
		sub.Gateway = a
	}
	for _, text := range f.ranges {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return hint.With(hint.Usagef("--ip-range %s: want a network with its prefix length", text), "e.g. --ip-range 10.20.0.128/25")
		}
		sub, err := f.subnetOf("ip-range", p.Addr())
		if err != nil {
			return err
		}
		sub.Range = p.Masked()
	}
	for _, text := range f.excludes {
		p, err := named.ParseNetwork(text)
		if err != nil {
			return hint.With(hint.Usagef("--exclude %s: want an address, or a network with its prefix length", text), "e.g. --exclude 10.20.0.2")
		}
		sub, err := f.subnetOf("exclude", p.Addr())
		if err != nil {
			return err
		}
		sub.Exclude = append(sub.Exclude, p)
	}
	for _, text := range f.reserve {
		name, addrs, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return hint.With(hint.Usagef("--reserve %s: want NAME=ADDRESS", text), "e.g. --reserve db=10.20.0.5")
		}
		all, err := named.ParseReservation(addrs)
		if err != nil {
			return WithHint(err)
		}
		if f.spec.Reserve == nil {
			f.spec.Reserve = named.Reservations{}
		}
		f.spec.Reserve[name] = append(f.spec.Reserve[name], all...)
	}
	for _, text := range f.dns {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return hint.With(hint.Usagef("--dns %s: want an IP address", text), "e.g. --dns 192.0.2.53")
		}
		f.spec.DNS = append(f.spec.DNS, a)
	}
	var err error
	f.spec.Labels, err = parseLabels(f.labels)
	return err
}

// subnetOf returns the subnet that a flag's address belongs to.
func (f *createFlags) subnetOf(flag string, a netip.Addr) (*named.Subnet, error) {
	for i := range f.spec.Subnets {
		if f.spec.Subnets[i].Prefix.Contains(a) {
			return &f.spec.Subnets[i], nil
		}
	}
	return nil, hint.With(hint.Usagef("--%s %s: is in no subnet", flag, a), "give its network with --subnet")
}

func parseLabels(texts []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, hint.With(hint.Usagef("--label %s: want NAME=VALUE", text), "e.g. --label tier=front")
		}
		labels[name] = value
	}
	return labels, nil
}

func newRm() *cobra.Command {
	force, asJSON := false, false
	cmd := &cobra.Command{
		Use:                   "rm NETWORK...",
		DisableFlagsInUseLine: true,
		Short:                 "remove networks",
		Long: `Removes networks with all that belongs to them on the host. A network that
containers are on is only removed with --force, which disconnects them.`,
		Example: `  cleat net rm web
  cleat net rm --force web db`,
		ValidArgsFunction: completeNetworks,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return hint.With(hint.Usagef("want the names of networks"), "`cleat net ls` lists them")
			}
			cfg, err := config(cmd)
			if err != nil {
				return err
			}
			for _, name := range args {
				got, err := named.Remove(cmd.Context(), cfg, name, force)
				if err != nil {
					return WithHint(err)
				}
				print := func() error { return printNotes(cmd.OutOrStdout(), got.Notes) }
				if asJSON {
					print = func() error { return printJSON(cmd.OutOrStdout(), got) }
				}
				if err := print(); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "disconnect the containers that are on it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each network")
	return cmd
}

// StartKeeper starts a keeper if there are networks and none runs.
func StartKeeper() {
	store, err := attach.OpenStore("")
	if err == nil && !(named.Store{Store: store}).IsEmpty() {
		_ = keep.Start(store) // the command has said what there is to say
	}
}

// ServeNames starts a keeper if none runs, and waits until the names of networks are served.
func ServeNames(ctx context.Context, cfg named.Config) error {
	if err := keep.Start(cfg.Attach.Store); err != nil {
		return err
	}
	return WaitForNames(ctx, cfg)
}

// WaitForNames waits until the names of networks are served.
func WaitForNames(ctx context.Context, cfg named.Config) error {
	return named.WaitForNames(ctx, named.Store{Store: cfg.Attach.Store})
}

// startKeeper starts a keeper if none runs, and waits until it serves the names of networks.
func startKeeper(ctx context.Context, cfg named.Config, got *named.Result) {
	if err := ServeNames(ctx, cfg); err != nil {
		got.Notes = append(got.Notes, fmt.Sprintf("names are not served: %v; `cleat keep` serves them", err))
	}
}

// noteBoot notes that networks are not back after a restart of the machine, unless a keeper is.
func noteBoot(cfg named.Config, got *named.Result) {
	if starts, managed := keep.AtBoot(cfg.Attach.Store); managed && !starts {
		got.Notes = append(got.Notes, "no keeper starts at boot: `cleat keep --install` has networks back then")
	}
}

// result is the output of commands with --json.
type result struct {
	Network  *named.Network  `json:"network"`
	Endpoint *named.Endpoint `json:"endpoint,omitempty"`
	Notes    []string        `json:"notes"`
}

func printJSON(out io.Writer, got *named.Result) error {
	return term.WriteJSONLine(out, result{got.Network, got.Endpoint, term.OrEmpty(got.Notes)})
}

func printResult(out io.Writer, got *named.Result, text string) error {
	if _, err := io.WriteString(out, columns.Plain(text)+"\n"); err != nil {
		return err
	}
	return printNotes(out, got.Notes)
}

func printNotes(out io.Writer, notes []string) error {
	for _, n := range notes {
		if _, err := io.WriteString(out, "note: "+columns.Plain(n)+"\n"); err != nil {
			return err
		}
	}
	return nil
}
