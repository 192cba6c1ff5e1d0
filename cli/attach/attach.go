package attach

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/cli/container"
	"cleat/cli/hint"
	"cleat/internal/rate"
	"cleat/link"
	"cleat/network/attach"
	"cleat/network/keep"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Name is the command's name, which main looks for before there are any.
const Name = "attach"

// flags are the flags of `cleat attach` as they are typed.
type flags struct {
	want   attach.Spec
	ips    []string
	gws    []string
	mac    string
	routes []string
	dns    []string
	rate   string
	set    []string
	check  string
	plan   bool
	asJSON bool
}

func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:                   Name + " CONTAINER KIND [PARENT] [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "give a running container a link",
		Long: `Gives a running container a link of any kind, with addresses and routes. All of
it is done or nothing: what fails, is interrupted or even killed is undone, at
the latest by the next command that changes wiring. --plan only shows the steps.
` + "`cleat detach`" + ` undoes it; what else there is stays as it is.

CONTAINER is a name or the beginning of an id (of Docker, Podman, containerd,
LXC, Apptainer; "podman:web" where several have one; for root, another user's is
called "podman:alice/web"), a process id, a name as of ` + "`ip netns`" + `, or a
path of a network namespace. Of the kinds, these have a PARENT:

` + kindsText() + `
Other parameters than those with flags are given by --set, under the names of
ip-link(8), e.g. --set vni=7 --set remote=192.0.2.2 for vxlan; =@FILE is for
what is in a file, such as --set private_key=@/etc/wireguard/key.

What is wanted is kept below /var/lib/cleat (or CLEAT_STATE_DIR).`,
		Example: `  # on the network of eth0, in VLAN 100, with an address of its own
  cleat attach web macvlan eth0 --ip 192.0.2.10/24 --gw 192.0.2.1 --vlan 100

  # on a bridge that is made if need be, with the host as the way out
  cleat attach web bridge br0 --ip 192.0.2.10/24 --masquerade

  # with an address from the network's own DHCP server
  cleat attach web macvlan eth0 --dhcp

  # only show what would be done
  cleat attach 4711 vxlan --set vni=7 --set remote=192.0.2.2 --plan

  # a card of its own, given back when it is detached
  cleat attach web phys eth1 --ip 192.0.2.10/24 --ip 2001:db8::10/64`,
		ValidArgsFunction: completeArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.ips, "ip", nil, "give it the address `ADDRESS/LENGTH`; several are separated by commas, or have a flag each")
	flags.StringSliceVar(&f.gws, "gw", nil, "`ADDRESS` of the default gateway, at most one a family, in the place of the container's")
	flags.BoolVar(&f.want.DHCP, "dhcp", false, "get IPv4 address, routes, MTU and name servers from a DHCP server")
	flags.StringVar(&f.mac, "mac", "", "Ethernet `ADDRESS` (default: a random one)")
	flags.StringVar(&f.want.Name, "name", "", "`NAME` of the link in the container (default: the first free of eth0, eth1 …)")
	flags.IntVar(&f.want.MTU, "mtu", 0, "largest packet in `BYTES` (default: that of PARENT)")
	flags.IntVar(&f.want.VLAN, "vlan", 0, "be in VLAN `ID`, 1…4094")
	flags.StringVar(&f.want.Mode, "mode", "", "`MODE` of the kind (default: the first of those above)")
	flags.StringArrayVar(&f.routes, "route", nil, "route `NETWORK[ via GATEWAY]` by the link; may be given several times")
	flags.StringSliceVar(&f.dns, "dns", nil, "have the container's resolv.conf name this `SERVER`; several are separated by commas")
	flags.StringVar(&f.rate, "rate", "", "no more than `RATE` bit/s in each direction, e.g. 100M")
	flags.IntVar(&f.want.BurstBytes, "burst", 0, "let `BYTES` pass at once after a pause (default: by the rate)")
	flags.BoolVar(&f.want.HostShim, "host-shim", false, "let the host itself reach the container, too (macvlan)")
	flags.BoolVar(&f.want.Masquerade, "masquerade", false, "make the host the gateway, and give what goes past the bridge its address (bridge)")
	flags.StringVar(&f.check, "check-duplicate", "", "ask others on the network first whether an address is theirs: =`HOW` is fast (0.3 s), thorough (as RFC 5227: up to 8 s) or none (default: fast where PARENT is hardware)")
	flags.Lookup("check-duplicate").NoOptDefVal = attach.CheckFast
	flags.StringArrayVar(&f.set, "set", nil, "set a parameter of the link, `NAME=VALUE`; may be given several times")
	flags.BoolVar(&f.want.Keep, "keep", false, "attach it again when the container or the machine starts anew, by cleat keep")
	flags.BoolVar(&f.plan, "plan", false, "print the steps, and do nothing")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object")
	return cmd
}

// kindsText is the table of kinds in the help.
func kindsText() string {
	var b strings.Builder
	for _, k := range attach.Kinds() {
		what, needed := attach.Parent(k)
		if what != "" && !needed {
			what = "[" + what + "]"
		}
		line := "  " + k + strings.Repeat(" ", 11-len(k)) + what
		if modes := attach.Modes(k); len(modes) > 0 {
			if what != "" {
				line += "\n" + strings.Repeat(" ", 13)
			}
			line += "--mode " + strings.Join(modes, ", ")
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// take fills in what is wanted from the arguments and flags.
func (f *flags) take(args []string) error {
	switch {
	case len(args) == 0:
		return hint.With(hint.Usagef("no container given"), "e.g. `cleat attach web macvlan eth0 --ip 192.0.2.10/24`")
	case len(args) == 1:
		return hint.With(hint.Usagef("no kind of link given"), hint.DidYouMean("", attach.Kinds()))
	}
	if i := slices.IndexFunc(args[2:], isCheckMethod); i >= 0 && f.check == attach.CheckFast {
		return hint.With(hint.Usagef("--check-duplicate %s: HOW stands behind =", args[2+i]), "--check-duplicate="+args[2+i])
	}
	if len(args) > 4 && args[3] == "via" && len(f.routes) > 0 {
		return hint.With(hint.Usagef("--route: its gateway stands apart from it"), fmt.Sprintf(`--route "%s via %s"`, f.routes[len(f.routes)-1], args[4]))
	}
	if len(args) > 3 {
		return hint.With(hint.Usagef("too many arguments: %s", strings.Join(args[3:], " ")), "addresses are given by --ip, gateways by --gw")
	}
	w := &f.want
	w.Kind = args[1]
	if len(args) == 3 {
		w.Parent = args[2]
	}
	w.CheckDuplicate = f.check
	if yes, err := strconv.ParseBool(f.check); err == nil {
		w.CheckDuplicate = map[bool]string{true: attach.CheckFast, false: attach.CheckNone}[yes]
	}
	for _, parse := range []func() error{f.takeAddresses, f.takeRoutes, f.takeSet} {
		if err := parse(); err != nil {
			return err
		}
	}
	if f.mac != "" {
		m, err := link.ParseMAC(f.mac)
		if err != nil || m == (link.MAC{}) {
			return hint.Usagef("--mac %s: want six hexadecimal bytes, e.g. 02:00:5e:10:00:01", f.mac)
		}
		w.MAC = m
	}
	if f.rate != "" {
		r, err := rate.Parse(f.rate)
		if err != nil {
			return hint.Usagef("--rate: %w", err)
		}
		w.RateBitsPerSec = int64(r)
	}
	return nil
}

// isCheckMethod tells whether a word is a way to ask for duplicates.
func isCheckMethod(word string) bool {
	return slices.Contains([]string{attach.CheckFast, attach.CheckThorough, attach.CheckNone}, word)
}

func (f *flags) takeAddresses() error {
	for _, text := range f.ips {
		if _, err := netip.ParseAddr(text); err == nil && !strings.Contains(text, "/") { // which a zone may have
			return hint.With(hint.Usagef("--ip %s: the length of its network is missing", text), "e.g. --ip "+text+map[bool]string{true: "/64", false: "/24"}[strings.Contains(text, ":")])
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return hint.With(hint.Usagef("--ip %s: want an address and the length of its network", text), "e.g. --ip 192.0.2.10/24 or --ip 2001:db8::10/64")
		}
		f.want.Addresses = append(f.want.Addresses, p)
	}
	for _, text := range f.gws {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return hint.With(hint.Usagef("--gw %s: want an address", text), "e.g. --gw 192.0.2.1")
		}
		f.want.Gateways = append(f.want.Gateways, a)
	}
	for _, text := range f.dns {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return hint.With(hint.Usagef("--dns %s: want an address", text), "e.g. --dns 192.0.2.53")
		}
		f.want.DNS = append(f.want.DNS, a)
	}
	return nil
}

func (f *flags) takeRoutes() error {
	for _, text := range f.routes {
		words := strings.Fields(text)
		if len(words) != 1 && (len(words) != 3 || words[1] != "via") {
			return hint.With(hint.Usagef("--route %q: want NETWORK or \"NETWORK via GATEWAY\"", text), `e.g. --route "198.51.100.0/24 via 192.0.2.1"`)
		}
		to, err := netip.ParsePrefix(words[0])
		if err != nil {
			return hint.With(hint.Usagef("--route %q: %s is no network", text, words[0]), "e.g. --route 198.51.100.0/24; a default route is given by --gw")
		}
		r := attach.Route{To: to}
		if len(words) == 3 {
			if r.Via, err = netip.ParseAddr(words[2]); err != nil {
				return hint.Usagef("--route %q: %s is no address", text, words[2])
			}
		}
		f.want.Routes = append(f.want.Routes, r)
	}
	return nil
}

func (f *flags) takeSet() error {
	for _, text := range f.set {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return hint.With(hint.Usagef("--set %s: want NAME=VALUE", text), "e.g. --set vni=7")
		}
		if f.want.Params == nil {
			f.want.Params = map[string]string{}
		}
		f.want.Params[name] = value
	}
	return nil
}

// notEmpty refuses flags that were given without a value, as by a script whose variable is
// empty: they would count as not given.
func notEmpty(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		switch f.Value.String() {
		case "", "[]":
			err = hint.Usagef("--%s: its value is missing", f.Name)
		case "0":
			err = hint.Usagef("--%s 0: want more, or leave it out", f.Name)
		}
	})
	return err
}

func (f *flags) run(cmd *cobra.Command, args []string) error {
	if err := notEmpty(cmd.Flags()); err != nil {
		return err
	}
	if err := f.take(args); err != nil {
		return err
	}
	cfg, err := container.Config()
	if err != nil {
		return err
	}
	cfg.Background = container.CallerOf(cmd.Context()).Background
	do := attach.Attach
	if f.plan {
		do = attach.Preview
	}
	got, err := do(cmd.Context(), cfg, args[0], f.want)
	if err != nil {
		return WithHint(f.failed(cmd.Context(), err))
	}
	if got.Attachment.NeedsKeeper() && !f.plan {
		if err := keep.Start(cfg.Store); err != nil {
			got.Notes = append(got.Notes, fmt.Sprintf("nobody keeps it, `cleat keep` would: %v", err))
		}
	}
	return f.print(cmd.OutOrStdout(), got)
}

// failed says in front of an error that nothing was changed, where that is worth
// saying: what is wrong with the command line never changes anything.
func (f *flags) failed(ctx context.Context, err error) error {
	if f.plan || isUsage(err) || ctx.Err() != nil {
		return err
	}
	return nothingChanged{err}
}
