package run

import (
	"errors"
	"slices"
	"strings"

	"cleat/cli/complete"
	"cleat/cli/hint"
	"cleat/sandbox"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Name is the command that main treats apart: it must begin quickly, and
// signals are its command's to answer.
const Name = "run"

// flags are the flags of `cleat run` as they are typed.
type flags struct {
	net      string
	netns    string
	listener string
	mapRoot  bool

	publish []string

	allow, deny []string
	policy      string
	hostSockets string

	hostLoopback []string
	mappings     []string

	mtu       int
	queues    int
	addr      []string
	gateway   []string
	dns       []string
	link      string
	outbound  []string
	tier      string
	pcap      string
	stats     bool
	verbose   bool
	asJSON    bool
	name      string
	control   string
	published Published
}

// The values of --net and --tier.
var (
	netKinds = []string{"user"}
	tiers    = []string{"auto", "seccomp", "splice", "tun"}
)

func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:                   "run [FLAGS] -- CMD [ARG…]",
		DisableFlagsInUseLine: true,
		Short:                 "give a program a network of its own, without root",
		Long: `Runs CMD in a network of its own: IPv4, IPv6, DNS and ping, all carried by this
process over the host's ordinary sockets. Nobody needs to be root, nothing of
the host changes, and when this process ends, nothing is left.

CMD keeps its environment, directory, terminal and user. It reaches what the
host reaches, but not what listens on the host's loopback, link-local addresses
or cloud metadata services; those must be allowed. With the first --allow,
nothing else is. The exit code is CMD's: 128 + N where signal N ended it, 127
where there is no such program, 126 where it can't be run. Signals go on to
CMD.

With --netns it serves a namespace that exists, such as a container's, until
that ends or Ctrl-C.

While it runs, "cleat ctl" lists flows, opens ports and replaces the policy.
What is let through and what is not: doc/run.md tells it all.`,
		Example: `  # a shell with a network of its own
  cleat run -- bash

  # a web server, to be reached at port 8080 of this host
  cleat run -p 8080:80 -- python3 -m http.server 80

  # nothing but one mirror and its name
  cleat run --allow deb.debian.org:80,443/tcp --verbose -- apt-get update

  # the host's own loopback, as 192.0.2.1
  cleat run --host-loopback 192.0.2.1 -- psql -h 192.0.2.1

  # as fast as the host, for a program that is trusted with its sockets
  cleat run --tier seccomp -p 8080:8080 -- ./server

  # a network for a container that has none yet
  cleat run --netns "$(podman inspect -f '{{.State.Pid}}' web)"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refuseEmpty(cmd.Flags()); err != nil {
				return err
			}
			return f.run(cmd.Context(), args, cmd.ErrOrStderr())
		},
	}
	f.define(cmd)
	return cmd
}

// define adds the flags to cmd.
func (f *flags) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows CMD is CMD's
	flags.StringVar(&f.net, "net", "user", "`KIND` of network: "+strings.Join(netKinds, ", "))
	flags.StringVar(&f.netns, "netns", "", "serve the network namespace of a process or at a path, `PID|PATH`, instead of running CMD")
	flags.StringVar(&f.listener, "listener", "", "with --netns and --tier seccomp: take containers over from OCI runtimes at a Unix socket, `PATH`, in a directory for the user alone; `cleat seccomp-profile` tells it to them")
	flags.BoolVar(&f.mapRoot, "map-root", false, "let CMD see itself as root")

	flags.StringArrayVarP(&f.publish, "publish", "p", nil, "let a port of the host lead to one inside: `[IP:]HOST:PORT[/udp]`, ranges too; :PORT takes any free one; auto follows what listens inside, auto,~22 but port 22")

	flags.StringArrayVar(&f.allow, "allow", nil, "let CMD reach `CIDR|NAME[:PORTS][/PROTO]`, and nothing that isn't allowed")
	flags.StringArrayVar(&f.deny, "deny", nil, "don't let CMD reach `CIDR|NAME[:PORTS][/PROTO]`; a narrower --allow is an exception")
	flags.StringVar(&f.policy, "policy", "", "read rules from `FILE`, one \"allow RULE\", \"deny RULE\", \"default allow|deny\", \"host-sockets WHAT\" or \"nat64 PREFIX\" a line")
	flags.StringVar(&f.hostSockets, "host-sockets", "", "for `WHAT` CMD may be handed sockets of the host's: none, not even by --tier seccomp; tcp, so that --tier auto is seccomp where the kernel can; tcp,udp, where nothing is denied")

	flags.StringSliceVar(&f.hostLoopback, "host-loopback", nil, "`ADDR` inside that leads to the host's own loopback, or off (default off)")
	flags.StringSliceVar(&f.mappings, "map", nil, "let an address inside lead to another of the host's, `ADDR=ADDR`")

	flags.IntVar(&f.mtu, "mtu", defaultMTU, "MTU of the device inside in `BYTES`")
	flags.IntVar(&f.queues, "queues", 0, "`N` queues of the device, each with a thread that moves bytes when there are several connections (default: as many as processors, at most 4)")
	flags.StringSliceVar(&f.addr, "addr", nil, "`PREFIX` inside, one of IPv4 and one of IPv6 (default 10.0.2.100/24 and fd63:6c65:6174::100/64); ipv4=off or ipv6=off switches one off")
	flags.StringSliceVar(&f.gateway, "gateway", nil, "`ADDR` of the router that CMD sees (default: the second of the prefix)")
	flags.StringSliceVar(&f.dns, "dns", nil, "`SERVER` to ask instead of the host's, ADDR or ADDR:PORT, or off")
	flags.StringVar(&f.link, "interface", "", "`NAME` of the device inside (default cleat0)")
	flags.StringSliceVar(&f.outbound, "outbound", nil, "`ADDR|LINK` of the host that connections leave by (default: as its routes say)")
	flags.StringVar(&f.tier, "tier", "auto", "`HOW` TCP connections move: "+strings.Join(tiers, ", ")+"; auto is splice where the kernel can, else tun, and seccomp where --host-sockets lets it; doc/tiers.md tells what each guarantees")

	flags.StringVar(&f.pcap, "pcap", "", "capture all packets of the device to a new `FILE`")
	flags.BoolVar(&f.stats, "stats", false, "print counters at the end, to standard error")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "tell of ports, and of each flow that is refused which rule did it, on standard error")
	flags.BoolVar(&f.asJSON, "json", false, "print what there is to say as JSON, one object a line")
	flags.StringVar(&f.name, "name", "", "`NAME` for \"cleat ctl\" (default: the process id)")
	flags.StringVar(&f.control, "control", "", "take orders at a Unix socket at `PATH` instead of by name only, or off")

	complete.Words(cmd, "net", netKinds...)
	complete.Words(cmd, "tier", tiers...)
	complete.Words(cmd, "host-sockets", "none", "tcp", "tcp,udp")
	complete.Words(cmd, "publish", "auto")
	complete.Words(cmd, "host-loopback", "off")
	complete.Words(cmd, "dns", "off")
	complete.Words(cmd, "addr", "ipv4=off", "ipv6=off")
	for _, rule := range []string{"allow", "deny", "map", "gateway", "mtu", "queues", "name", "interface"} {
		complete.Words(cmd, rule)
	}
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveDefault
	}
}

// refuseEmpty refuses flags that were given nothing, as by a variable that is not
// set: they would mean the same as none.
func refuseEmpty(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if v := f.Value.String(); err == nil && (v == "" || v == "[]") {
			err = hint.Usagef("--%s has no value: give one, or leave the flag out", f.Name)
		}
	})
	return err
}

// checkUse refuses what can't be meant together.
func (f *flags) checkUse(args []string) error {
	switch {
	case f.net != "user":
		return hint.With(hint.Usagef("--net %q: unknown kind of network", f.net), hint.DidYouMean(f.net, netKinds))
	case !slices.Contains(tiers, f.tier):
		return hint.With(hint.Usagef("--tier %q: unknown tier", f.tier), hint.DidYouMean(f.tier, tiers))
	case (f.tier == "splice" || f.tier == "seccomp") && f.pcap != "":
		return hint.Usagef("--pcap captures what crosses the device, which --tier %s has TCP avoid: leave one of them out", f.tier)
	case f.tier == "seccomp" && f.netns != "" && f.listener == "":
		return hint.With(hint.Usagef("--tier seccomp is for a command that cleat starts: with --netns it takes a --listener"),
			"leave it out, --tier auto splices; or add e.g. --listener $XDG_RUNTIME_DIR/seccomp.sock, and start the container with the profile that `cleat seccomp-profile --listener PATH` prints")
	case f.listener != "" && (f.netns == "" || f.tier != "seccomp"):
		return hint.Usagef("--listener is for containers that OCI runtimes start: give --netns and --tier seccomp with it")
	case f.netns == "" && len(args) == 0:
		return hint.With(hint.Usagef("no command given"), "give one to run, e.g. `cleat run -- bash`, or a namespace to serve, `cleat run --netns PID`")
	case f.netns != "" && len(args) > 0:
		return hint.With(hint.Usagef("--netns serves a namespace that exists: it can't be given together with a command (%q)", args[0]),
			"run the command by what made the namespace, e.g. `nsenter --user --preserve-credentials --net --target PID CMD`")
	case f.netns != "" && f.mapRoot:
		return hint.Usagef("--map-root is for a command; with --netns there is none")
	case f.control == "off" && f.name != "":
		return hint.Usagef("--name is for orders, which --control off refuses")
	}
	return nil
}

// flagOfField is the flag that a sandbox.ConfigError is about, by the field's
// first word.
var flagOfField = map[string]string{
	"MTU": "mtu", "Tier": "tier", "Queues": "queues", "Addr4": "addr", "Addr6": "addr", "NoIPv4": "addr", "NoIPv6": "addr",
	"Gateway4": "gateway", "Gateway6": "gateway", "DNS": "dns", "Mappings": "map",
	"HostLoopback4": "host-loopback", "HostLoopback6": "host-loopback",
	"Interface": "interface", "Forwards": "publish", "AutoForward": "publish",
	"Outbound4": "outbound", "Outbound6": "outbound", "OutboundInterface": "outbound",
}

// libraryError tells a mistake in the configuration by the flag that made it.
func libraryError(err error) error {
	var wrong *sandbox.ConfigError
	if !errors.As(err, &wrong) {
		return err
	}
	field, _, _ := strings.Cut(wrong.Field, ".")
	flag, ok := flagOfField[field]
	if !ok {
		return hint.Usage(err)
	}
	return hint.Usagef("--%s %q: want %s", flag, wrong.Value, wrong.Want)
}
