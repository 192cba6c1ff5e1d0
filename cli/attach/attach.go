package attach

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/cli/container"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/internal/rate"
	"cleat/link"
	"cleat/network/attach"
	"cleat/network/keep"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Name is the name of the command attach.
const Name = "attach"

// flags are the flags of `cleat attach` as they are typed, and the Spec that they make.
type flags struct {
	spec       attach.Spec
	addresses  []string
	gateways   []string
	mac        string
	routes     []string
	dns        []string
	rate       string
	params     []string
	check      string
	plan, json bool
}

// New returns the command attach.
func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:                   Name + " CONTAINER KIND [PARENT] [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "give a running container a link",
		Long: `Gives a running container a link of any kind, with addresses and routes. This is
atomic: a failed, interrupted or killed attach is rolled back, at the latest by
the next command that changes wiring. ` + "`cleat detach`" + ` undoes it.

CONTAINER is one of
  - the name, or the first characters of the id, of a container of Docker,
    Podman, containerd, LXC or Apptainer ("podman:web" if several have the
    name; for root, "podman:alice/web" is another user's);
  - a process id;
  - a name that ` + "`ip netns`" + ` lists;
  - the path of a network namespace.

These are the values of KIND, their PARENT and their modes; doc/attach.md says
what a container gets from each:

` + kindsText() + `
--set takes other parameters by their names in ip-link(8), e.g. --set vni=7
--set remote=192.0.2.2 for vxlan. NAME=@FILE reads the value from a file, e.g.
--set private_key=@/etc/wireguard/key.`,
		Example: `  # on the network of eth0, in VLAN 100, with its own address
  cleat attach web macvlan eth0 --vlan 100 \
    --ip 192.0.2.10/24 --gw 192.0.2.1

  # on a bridge, created if it is missing, with the host as the gateway
  cleat attach web bridge br0 --ip 192.0.2.10/24 --masquerade

  # with an address from the network's DHCP server
  cleat attach web macvlan eth0 --dhcp

  # show what would be done
  cleat attach 4711 vxlan --set vni=7 --set remote=192.0.2.2 --plan

  # a network card, returned to the host by detach
  cleat attach web phys eth1 --ip 192.0.2.10/24 --ip 2001:db8::10/64`,
		ValidArgsFunction: completeArgs,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.addresses, "ip", nil, "add the address `ADDRESS/LENGTH`; repeat the flag or separate with commas for several")
	flags.StringSliceVar(&f.gateways, "gw", nil, "replace the container's default gateway by `ADDRESS`, at most one for IPv4 and one for IPv6")
	flags.BoolVar(&f.spec.DHCP, "dhcp", false, "get IPv4 address, routes, MTU and name servers from a DHCP server")
	flags.StringVar(&f.mac, "mac", "", "set the Ethernet address `MAC` (default: random)")
	flags.StringVar(&f.spec.Name, "name", "", "`NAME` of the link in the container (default: the first free of eth0, eth1, …)")
	flags.IntVar(&f.spec.MTU, "mtu", 0, "MTU in `BYTES` (default: that of PARENT)")
	flags.IntVar(&f.spec.VLAN, "vlan", 0, "join VLAN `ID`, 1…4094")
	flags.StringVar(&f.spec.Mode, "mode", "", "`MODE` of the kind (default: the first one listed above)")
	flags.StringArrayVar(&f.routes, "route", nil, "add the route `NETWORK[ via ADDRESS]`; may be repeated")
	flags.StringSliceVar(&f.dns, "dns", nil, "write the name server `ADDRESS` to the container's resolv.conf; repeat the flag or separate with commas for several")
	flags.StringVar(&f.rate, "rate", "", "limit each direction to `RATE` bit/s, e.g. 100M")
	flags.IntVar(&f.spec.BurstBytes, "burst", 0, "let `BYTES` exceed --rate after a pause (default: depends on the rate)")
	flags.BoolVar(&f.spec.HostShim, "host-shim", false, "macvlan: let the host reach the container, too")
	flags.BoolVar(&f.spec.Masquerade, "masquerade", false, "bridge: make the host the gateway and masquerade outgoing traffic")
	flags.StringVar(&f.check, "check-duplicate", "", "first ask the network whether an address is in use: `HOW` is fast (0.3 s), thorough (as RFC 5227, up to 8 s) or none (default: fast if PARENT is hardware)")
	flags.Lookup("check-duplicate").NoOptDefVal = attach.CheckFast
	flags.StringArrayVar(&f.params, "set", nil, "set a parameter of the link, `NAME=VALUE`; may be repeated")
	flags.BoolVar(&f.spec.Keep, "keep", false, "let `cleat keep` attach it again when the container or the machine restarts")
	flags.BoolVar(&f.plan, "plan", false, "print the steps and do nothing")
	flags.BoolVar(&f.json, "json", false, "print a JSON object")
	help.Group(cmd, "Addresses and routes", "ip", "gw", "route", "dhcp", "dns", "check-duplicate")
	help.Group(cmd, "Link", "name", "mac", "mtu", "vlan", "mode", "set", "rate", "burst", "host-shim", "masquerade")
	documentFiles(cmd)
	return cmd
}

// documentFiles adds the files of attachments to the manual page of cmd.
func documentFiles(cmd *cobra.Command) {
	help.File(cmd, "/var/lib/cleat/attachments", "one JSON file for each attachment; CLEAT_STATE_DIR replaces /var/lib/cleat")
	help.File(cmd, "/run/cleat/attach", "undo journals, discarded at boot; with CLEAT_STATE_DIR, run in that directory")
}

// kindsText is the table of kinds in the help.
func kindsText() string {
	var b strings.Builder
	for _, k := range attach.Kinds() {
		parent, needed := attach.Parent(k)
		if parent != "" && !needed {
			parent = "[" + parent + "]"
		}
		line := "  " + k + strings.Repeat(" ", 11-len(k)) + parent
		if modes := attach.Modes(k); len(modes) > 0 {
			if parent != "" {
				line += "\n" + strings.Repeat(" ", 13)
			}
			line += "--mode " + strings.Join(modes, ", ")
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// parse makes the Spec from the arguments and flags.
func (f *flags) parse(args []string) error {
	if err := f.parseArgs(args); err != nil {
		return err
	}
	s := &f.spec
	s.CheckDuplicate = f.check
	if yes, err := strconv.ParseBool(f.check); err == nil { // as by --check-duplicate=false
		s.CheckDuplicate = map[bool]string{true: attach.CheckFast, false: attach.CheckNone}[yes]
	}
	var err error
	if s.Addresses, err = parseEach(f.addresses, parseAddress); err != nil {
		return err
	}
	if s.Gateways, err = parseEach(f.gateways, addressOf("gw")); err != nil {
		return err
	}
	if s.DNS, err = parseEach(f.dns, addressOf("dns")); err != nil {
		return err
	}
	if s.Routes, err = parseEach(f.routes, parseRoute); err != nil {
		return err
	}
	for _, text := range f.params {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return hint.With(hint.Usagef("--set %s: want NAME=VALUE", text), "e.g. --set vni=7")
		}
		if s.Params == nil {
			s.Params = map[string]string{}
		}
		s.Params[name] = value
	}
	if f.mac != "" {
		if s.MAC, err = link.ParseMAC(f.mac); err != nil || s.MAC == (link.MAC{}) {
			return hint.Usagef("--mac %s: want six hexadecimal bytes, e.g. 02:00:5e:10:00:01", f.mac)
		}
	}
	if f.rate != "" {
		r, err := rate.Parse(f.rate)
		if err != nil {
			return hint.Usagef("--rate: %w", err)
		}
		s.RateBitsPerSec = int64(r)
	}
	return nil
}

// parseArgs reads KIND and PARENT. Superfluous arguments mostly belong to a flag.
func (f *flags) parseArgs(args []string) error {
	switch {
	case len(args) == 0:
		return hint.With(hint.Usagef("no container given"), "e.g. `cleat attach web macvlan eth0 --ip 192.0.2.10/24`")
	case len(args) == 1:
		return hint.With(hint.Usagef("no kind of link given"), hint.DidYouMean("", attach.Kinds()))
	}
	if i := slices.IndexFunc(args[2:], isCheckMethod); i >= 0 && f.check == attach.CheckFast {
		return hint.With(hint.Usagef("--check-duplicate %s: want = before %[1]s", args[2+i]), "--check-duplicate="+args[2+i])
	}
	if len(args) > 4 && args[3] == "via" && len(f.routes) > 0 {
		return hint.With(hint.Usagef("--route: want quotes around the network and its gateway"), fmt.Sprintf(`--route "%s via %s"`, f.routes[len(f.routes)-1], args[4]))
	}
	if len(args) > 3 {
		return hint.With(hint.Usagef("too many arguments: %s", strings.Join(args[3:], " ")), "use --ip for addresses, --gw for gateways")
	}
	f.spec.Kind = args[1]
	if len(args) == 3 {
		f.spec.Parent = args[2]
	}
	return nil
}

func isCheckMethod(word string) bool {
	return slices.Contains([]string{attach.CheckFast, attach.CheckThorough, attach.CheckNone}, word)
}

func parseEach[T any](texts []string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for _, text := range texts {
		v, err := parse(text)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func parseAddress(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && !strings.Contains(text, "/") { // an IPv6 zone may have a slash
		length := "/24"
		if !a.Is4() {
			length = "/64"
		}
		return netip.Prefix{}, hint.With(hint.Usagef("--ip %s: the prefix length is missing", text), "e.g. --ip "+text+length)
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, hint.With(hint.Usagef("--ip %s: want an address with a prefix length", text), "e.g. --ip 192.0.2.10/24 or --ip 2001:db8::10/64")
	}
	return p, nil
}

// addressOf returns a function that parses an address for a flag.
func addressOf(flag string) func(string) (netip.Addr, error) {
	return func(text string) (netip.Addr, error) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return a, hint.With(hint.Usagef("--%s %s: want an IP address", flag, text), fmt.Sprintf("e.g. --%s 192.0.2.1", flag))
		}
		return a, nil
	}
}

func parseRoute(text string) (attach.Route, error) {
	words := strings.Fields(text)
	if len(words) != 1 && (len(words) != 3 || words[1] != "via") {
		return attach.Route{}, hint.With(hint.Usagef("--route %q: want NETWORK or \"NETWORK via ADDRESS\"", text), `e.g. --route "198.51.100.0/24 via 192.0.2.1"`)
	}
	to, err := netip.ParsePrefix(words[0])
	if err != nil {
		return attach.Route{}, hint.With(hint.Usagef("--route %q: %s is not a network", text, words[0]), "e.g. --route 198.51.100.0/24; use --gw for a default route")
	}
	r := attach.Route{To: to}
	if len(words) == 3 {
		if r.Via, err = netip.ParseAddr(words[2]); err != nil {
			return r, hint.Usagef("--route %q: %s is not an IP address", text, words[2])
		}
	}
	return r, nil
}

// checkNotZero returns an error if a flag is 0, which would count as if the flag were missing.
func checkNotZero(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if f.Value.String() == "0" {
			err = hint.Usagef("--%s 0: want more, or leave it out", f.Name)
		}
	})
	return err
}

func (f *flags) run(cmd *cobra.Command, args []string) error {
	if err := cmp.Or(hint.CheckValues(cmd.Flags()), checkNotZero(cmd.Flags())); err != nil {
		return err
	}
	if err := f.parse(args); err != nil {
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
	result, err := do(cmd.Context(), cfg, args[0], f.spec)
	if err != nil {
		// A plan and a mistake in the command line never change anything.
		if !f.plan && !isUsage(err) && cmd.Context().Err() == nil {
			err = fmt.Errorf("nothing was changed: %w", err)
		}
		return WithHint(err)
	}
	if result.Attachment.NeedsKeeper() && !f.plan {
		if err := keep.Start(cfg.Store); err != nil {
			result.Notes = append(result.Notes, fmt.Sprintf("no keeper runs, start one with `cleat keep`: %v", err))
		}
	}
	return f.print(cmd.OutOrStdout(), result)
}
