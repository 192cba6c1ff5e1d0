package run

import (
	"errors"
	"slices"
	"strings"

	"cleat/cli/complete"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/sandbox"

	"github.com/spf13/cobra"
)

// Name is the name of the command run. The root command treats it differently: it must start
// fast, and handles signals itself.
const Name = "run"

// flags are the flags of `cleat run` as they are typed, and what --publish adds up to.
type flags struct {
	net      string
	netns    string
	listener string
	mapRoot  bool

	publish   []string
	published Published

	allow, deny []string
	policy      string
	hostSockets string

	hostLoopback  []string
	mappings      []string
	addresses     []string
	gateways      []string
	dns           []string
	outbound      []string
	device        string // its kind
	interfaceName string
	mtu, queues   int
	tier          string

	pcap           string
	stats, verbose bool
	json           bool
	name, control  string
}

// The values of --net, --device and --tier.
var (
	netKinds = []string{"user"}
	devices  = []string{string(sandbox.DeviceTUN), string(sandbox.DeviceTAP)}
	tiers    = []string{"auto", "seccomp", "splice", "tun"}
)

// New returns the command run.
func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:                   "run [FLAGS] -- CMD [ARG…]",
		DisableFlagsInUseLine: true,
		Short:                 "give a program its own network, without root",
		Long: `Runs CMD in a network of its own: IPv4, IPv6, DNS and ping. This process carries
all of it over ordinary sockets of the host. It needs no root and changes
nothing on the host. When it ends, nothing is left.

CMD keeps its environment, directory, terminal and user. It can reach what the
host can reach, except servers on the host's loopback, which need
--host-loopback, and link-local addresses and cloud metadata services, which
need an --allow that names them. The first --allow denies everything that is not
allowed. The exit code is CMD's: 128 + N if signal N ended it, 127 if there is
no such program, 126 if it can't be executed. Signals are passed to CMD.

With --netns, it serves an existing namespace, such as a container's, until that
ends or Ctrl-C.

While it runs, "cleat ctl" lists flows, opens ports and replaces the policy.
doc/run.md has the details.`,
		Example: `  # a shell with its own network
  cleat run -- bash

  # a web server, reachable at port 8080 of this host
  cleat run -p 8080:80 -- python3 -m http.server 80

  # nothing but one mirror and its name
  cleat run --allow deb.debian.org:80,443/tcp --verbose -- apt-get update

  # the host's own loopback, as 192.0.2.1
  cleat run --host-loopback 192.0.2.1 -- psql -h 192.0.2.1

  # as fast as the host, for a program that is trusted with host sockets
  cleat run --tier seccomp -p 8080:8080 -- ./server

  # a network for a container that has none
  cleat run --netns "$(podman inspect -f '{{.State.Pid}}' web)"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := hint.CheckValues(cmd.Flags()); err != nil {
				return err
			}
			return f.run(cmd.Context(), args, cmd.ErrOrStderr())
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	f.define(cmd)
	return cmd
}

// define adds the flags to cmd.
func (f *flags) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after CMD are CMD's
	flags.StringVar(&f.netns, "netns", "", "serve the network namespace of a process or at a path, `PID|PATH`, instead of running CMD")
	flags.StringVar(&f.listener, "listener", "", "with --netns and --tier seccomp: take over containers from OCI runtimes at the Unix socket `FILE`, in a directory that only the user can enter; see `cleat seccomp-profile`")
	flags.BoolVar(&f.mapRoot, "map-root", false, "let CMD see itself as root")
	flags.StringVar(&f.net, "net", "user", "`KIND` of network: "+strings.Join(netKinds, ", "))

	flags.StringArrayVar(&f.allow, "allow", nil, "let CMD reach `CIDR|NAME[:PORTS][/PROTO]`, and deny what no rule allows")
	flags.StringArrayVar(&f.deny, "deny", nil, "don't let CMD reach `CIDR|NAME[:PORTS][/PROTO]`; a narrower --allow is an exception")
	flags.StringVar(&f.policy, "policy", "", "read rules from `FILE`, one on a line: \"allow RULE\", \"deny RULE\", \"default allow|deny\", \"host-sockets PROTOCOLS\" or \"nat64 CIDR\"")
	flags.StringVar(&f.hostSockets, "host-sockets", "", "host sockets that CMD may receive, `PROTOCOLS`: none (--tier seccomp is an error), tcp (--tier auto uses seccomp if the kernel can), or tcp,udp (only if nothing is denied)")

	flags.StringArrayVarP(&f.publish, "publish", "p", nil, "forward a port of the host to one inside: `[ADDRESS:]PORT:PORT[/udp]`, or ranges; :PORT takes any free port of the host; auto follows the listeners inside, auto,~22 those but port 22")
	flags.StringSliceVar(&f.hostLoopback, "host-loopback", nil, "make `ADDRESS` inside lead to the host's own loopback, or off (default: off)")
	flags.StringSliceVar(&f.mappings, "map", nil, "make an address inside lead to another one on the host's side, `ADDRESS=ADDRESS`")

	flags.StringSliceVar(&f.addresses, "addr", nil, "address inside, `ADDRESS/LENGTH`, one of IPv4 and one of IPv6 (default: 10.0.2.100/24 and fd63:6c65:6174::100/64); ipv4=off or ipv6=off disables one")
	flags.StringSliceVar(&f.gateways, "gateway", nil, "`ADDRESS` of the router that CMD sees (default: the second one of the network)")
	flags.StringSliceVar(&f.dns, "dns", nil, "forward DNS queries to `ADDRESS[:PORT]` instead of the host's servers, or off")
	flags.StringSliceVar(&f.outbound, "outbound", nil, "connect from `ADDRESS|NAME`, an address or a link of the host (default: as its routes say)")
	flags.StringVar(&f.interfaceName, "interface", "", "`NAME` of the device inside (default: cleat0)")
	flags.StringVar(&f.device, "device", string(sandbox.DeviceTUN), "`KIND` of the device inside: tun, which carries IP packets, or tap, an Ethernet card, for programs that expect one; it answers ARP, NDP and DHCP")
	flags.IntVar(&f.mtu, "mtu", defaultMTU, "MTU of the device inside in `BYTES`")
	flags.IntVar(&f.queues, "queues", 0, "use `NUMBER` queues of the device, each with its own thread once there are several connections (default: one for each processor, at most 4)")
	flags.StringVar(&f.tier, "tier", "auto", "how TCP connections are carried, `TIER`: "+strings.Join(tiers, ", ")+"; auto is the first that works of seccomp (only with --host-sockets tcp), splice and tun; see doc/tiers.md")

	flags.StringVar(&f.pcap, "pcap", "", "capture all packets of the device in a new `FILE`")
	flags.BoolVar(&f.stats, "stats", false, "print counters to standard error at the end")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "print ports, and each refused flow with its rule, to standard error")
	flags.BoolVar(&f.json, "json", false, "print messages as JSON, one object on a line")
	flags.StringVar(&f.name, "name", "", "`NAME` for \"cleat ctl\" (default: the process id)")
	flags.StringVar(&f.control, "control", "", "accept \"cleat ctl\" at the Unix socket `FILE` instead of by name, or off")

	help.Group(cmd, "What may be reached", "allow", "deny", "policy", "host-sockets")
	help.Group(cmd, "Ports and mapped addresses", "publish", "host-loopback", "map")
	help.Group(cmd, "The network inside", "addr", "gateway", "dns", "interface", "device", "mtu", "outbound", "net", "tier", "queues")
	help.Group(cmd, "What is run or served", "netns", "listener", "map-root")
	help.Group(cmd, "Messages and control", "verbose", "stats", "pcap", "json", "name", "control")
	help.Status(cmd, "126", "CMD can't be executed")
	help.Status(cmd, "127", "there is no program CMD")
	help.Status(cmd, "N", "CMD's own, once it has started")
	help.File(cmd, "/etc/resolv.conf", "the host's name servers; watched for changes")

	complete.Words(cmd, "net", netKinds...)
	complete.Words(cmd, "tier", tiers...)
	complete.Words(cmd, "device", devices...)
	complete.Words(cmd, "host-sockets", "none", "tcp", "tcp,udp")
	complete.Words(cmd, "publish", "auto")
	complete.Words(cmd, "host-loopback", "off")
	complete.Words(cmd, "dns", "off")
	complete.Words(cmd, "addr", "ipv4=off", "ipv6=off")
	for _, name := range []string{"allow", "deny", "map", "gateway", "mtu", "queues", "name", "interface"} {
		complete.Words(cmd, name)
	}
}

// check returns an error if flags and arguments contradict each other.
func (f *flags) check(args []string) error {
	switch {
	case f.net != "user":
		return hint.With(hint.Usagef("--net %q: unknown kind of network", f.net), hint.DidYouMean(f.net, netKinds))
	case !slices.Contains(devices, f.device):
		return hint.With(hint.Usagef("--device %q: unknown kind of device", f.device), hint.DidYouMean(f.device, devices))
	case !slices.Contains(tiers, f.tier):
		return hint.With(hint.Usagef("--tier %q: unknown tier", f.tier), hint.DidYouMean(f.tier, tiers))
	case (f.tier == "splice" || f.tier == "seccomp") && f.pcap != "":
		return hint.Usagef("--pcap captures packets of the device, which TCP bypasses with --tier %s: leave one of them out", f.tier)
	case f.tier == "seccomp" && f.netns != "" && f.listener == "":
		return hint.With(hint.Usagef("--tier seccomp with --netns needs --listener, since cleat does not start the processes there"),
			"leave --tier out to splice; or add e.g. --listener $XDG_RUNTIME_DIR/seccomp.sock, and start the container with the profile that `cleat seccomp-profile --listener FILE` prints")
	case f.listener != "" && (f.netns == "" || f.tier != "seccomp"):
		return hint.Usagef("--listener is for containers that OCI runtimes start: add --netns and --tier seccomp")
	case f.netns == "" && len(args) == 0:
		return hint.With(hint.Usagef("no command given"), "e.g. `cleat run -- bash`, or `cleat run --netns PID` to serve a namespace")
	case f.netns != "" && len(args) > 0:
		return hint.With(hint.Usagef("--netns serves an existing namespace and can't be combined with a command (%q)", args[0]),
			"run the command in that namespace, e.g. `nsenter --user --preserve-credentials --net --target PID CMD`")
	case f.netns != "" && f.mapRoot:
		return hint.Usagef("--map-root needs a command, and --netns has none")
	case f.control == "off" && f.name != "":
		return hint.Usagef("--name is for \"cleat ctl\", which --control off disables")
	}
	return nil
}

// flagOfField has the flag for each field that a sandbox.ConfigError may name.
var flagOfField = map[string]string{
	"MTU": "mtu", "Tier": "tier", "Queues": "queues", "Addr4": "addr", "Addr6": "addr", "NoIPv4": "addr", "NoIPv6": "addr",
	"Gateway4": "gateway", "Gateway6": "gateway", "DNS": "dns", "Mappings": "map",
	"HostLoopback4": "host-loopback", "HostLoopback6": "host-loopback",
	"Interface": "interface", "Forwards": "publish", "AutoForward": "publish",
	"Outbound4": "outbound", "Outbound6": "outbound", "OutboundInterface": "outbound",
}

// configError names the flag where the library names a field of its configuration.
func configError(err error) error {
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
