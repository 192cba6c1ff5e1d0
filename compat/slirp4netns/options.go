package slirp4netns

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"

	"cleat/compat/getopt"
	"cleat/sandbox"
)

// Options is a parsed command line, validated as far as possible without examining the
// host.
type Options struct {
	Version, Help bool

	Configure       bool
	ExitFD, ReadyFD int // -1 if not given
	MTU             int // bytes
	CIDR            netip.Prefix
	NoHostLoopback  bool
	IPv6, NoDNS     bool
	UserNS          string
	APISocket       string
	// Outbound4 and Outbound6 are source addresses, or names of links whose addresses are
	// used; "" lets the host's routes decide.
	Outbound4, Outbound6 string

	PID       int         // a process in the namespace; 0 if Path is used
	Path      string      // path of the namespace
	Interface string      // the device's name inside
	MAC       sandbox.MAC // its address; zero: a random one

	byPath  bool
	Notices []string // accepted options that the user should know about
}

// table lists the options of slirp4netns(1), in the order of its help.
func table() getopt.Table[Options] {
	word := func(field func(*Options) *string) func(*Options, string) error {
		return func(o *Options, v string) error { *field(o) = v; return nil }
	}
	noLoopback := getopt.Set(func(o *Options) *bool { return &o.NoHostLoopback })
	return getopt.Table[Options]{Rows: []getopt.Row[Options]{
		{Name: "configure", Short: 'c', Help: "set the device up, and lo", Apply: getopt.Set(func(o *Options) *bool { return &o.Configure })},
		{Name: "exit-fd", Short: 'e', Arg: "FD", Help: "exit when this descriptor hangs up", Apply: descriptor(func(o *Options) *int { return &o.ExitFD })},
		{Name: "ready-fd", Short: 'r', Arg: "FD", Help: "write 1 to this descriptor when the network works", Apply: descriptor(func(o *Options) *int { return &o.ReadyFD })},
		{Name: "mtu", Short: 'm', Arg: "MTU", Help: "the device's MTU (default=1500, max=65520)", Apply: applyMTU},
		{Name: "enable-ipv6", Short: '6', Help: "IPv6 as well: fd00::/64, the guest fd00::100", Apply: getopt.Set(func(o *Options) *bool { return &o.IPv6 })},
		{Name: "api-socket", Short: 'a', Arg: "PATH", Help: "listen for requests on a Unix socket at this path", Apply: word(func(o *Options) *string { return &o.APISocket })},
		{Name: "cidr", Arg: "CIDR", Help: "the network, prefix length 1 to 25 (default=10.0.2.0/24)", Apply: applyCIDR},
		{Name: "disable-host-loopback", Help: "prohibit connecting to the host's 127.0.0.1", Apply: noLoopback},
		{Name: "no-host-loopback", Apply: noLoopback},
		{Name: "netns-type", Arg: "TYPE", Help: "how the namespace is given: pid or path (default=pid)", Apply: applyNetNSType},
		{Name: "userns-path", Arg: "PATH", Help: "user namespace to join first", Apply: word(func(o *Options) *string { return &o.UserNS })},
		{Name: "enable-sandbox", Help: "no effect: all privileges and files are always given up", Apply: getopt.Accept[Options]},
		{Name: "create-sandbox", Apply: getopt.Accept[Options]},
		{Name: "enable-seccomp", Help: "no effect: system calls are always restricted", Apply: getopt.Accept[Options]},
		{Name: "outbound-addr", Arg: "IPv4|LINK", Help: "source address of IPv4 traffic", Apply: word(func(o *Options) *string { return &o.Outbound4 })},
		{Name: "outbound-addr6", Arg: "IPv6|LINK", Help: "source address of IPv6 traffic", Apply: word(func(o *Options) *string { return &o.Outbound6 })},
		{Name: "disable-dns", Help: "no resolver in the network", Apply: getopt.Set(func(o *Options) *bool { return &o.NoDNS })},
		{Name: "macaddress", Arg: "MAC", Help: "the device's MAC address (only with -c; default: a random one)", Apply: applyMAC},
		{Name: "target-type", Arg: "TYPE", Help: "netns, which is the default; bess is not supported", Apply: applyTargetType},
		{Name: "help", Short: 'h', Help: "show this help and exit", Apply: getopt.Last(func(o *Options) *bool { return &o.Help })},
		{Name: "version", Short: 'v', Help: "show version and exit", Apply: getopt.Last(func(o *Options) *bool { return &o.Version })},
	}}
}

// Parse parses the arguments after the program's name. The error is a *getopt.Error for a
// syntax error, and otherwise names the invalid option and the reason.
func Parse(args []string) (Options, error) {
	o := Options{ExitFD: -1, ReadyFD: -1, MTU: 1500, CIDR: netip.MustParsePrefix("10.0.2.0/24")}
	rest, err := table().Read(&o, args)
	switch {
	case errors.Is(err, getopt.ErrStop):
		return o, nil
	case err != nil:
		return o, err
	}
	if o.MAC != (sandbox.MAC{}) && !o.Configure {
		return o, errors.New("--macaddress requires --configure")
	}
	return o, o.target(rest)
}

// target parses PID|PATH and the device's name. Further arguments have always been
// accepted.
func (o *Options) target(rest []string) error {
	if len(rest) == 0 {
		return &getopt.Error{Text: "missing namespace: PID, or a path with --netns-type=path"}
	}
	o.Interface = "tap0"
	if len(rest) > 1 {
		o.Interface = rest[1]
	}
	if o.Interface == "" || len(o.Interface) > 15 {
		return fmt.Errorf("device %q: a link name has 1 to 15 bytes", o.Interface)
	}
	if len(rest) > 2 {
		o.Notices = append(o.Notices, "arguments after the device's name are ignored, as in slirp4netns")
	}
	if o.byPath {
		o.Path = rest[0]
		return nil
	}
	n, err := strconv.Atoi(rest[0])
	if err != nil || n <= 0 || n > math.MaxInt32 {
		return &getopt.Error{Text: fmt.Sprintf("PID %q is not a positive integer; for a path use --netns-type=path", rest[0])}
	}
	o.PID = n
	return nil
}

func descriptor(field func(*Options) *int) func(*Options, string) error {
	return func(o *Options, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > math.MaxInt32 {
			return errors.New("must be a non-negative integer")
		}
		*field(o) = n
		return nil
	}
}

func applyMTU(o *Options, v string) error {
	n, err := strconv.Atoi(v)
	switch {
	case err != nil || n <= 0:
		return errors.New("must be a positive integer")
	case n < 576 || n > 65520:
		return errors.New("must be 576 to 65520")
	}
	o.MTU = n
	return nil
}

func applyMAC(o *Options, v string) error {
	m, err := sandbox.ParseMAC(v)
	if err != nil || !m.Unicast() {
		return errors.New("is not the MAC address of one station")
	}
	o.MAC = m
	return nil
}

func applyCIDR(o *Options, v string) error {
	p, err := netip.ParsePrefix(v)
	switch {
	case err != nil || !p.Addr().Is4():
		return errors.New("is not an IPv4 network in CIDR notation")
	case p.Bits() < 1 || p.Bits() > 25:
		return errors.New("prefix length needs to be 1-25")
	case p != p.Masked():
		return fmt.Errorf("needs to be a network address, like %s", p.Masked())
	}
	o.CIDR = p
	return nil
}

func applyNetNSType(o *Options, v string) error {
	switch v {
	case "pid", "path":
		o.byPath = v == "path"
		return nil
	case "tapfd":
		return errors.New("is not supported: the device is created in the namespace")
	}
	return errors.New("want pid or path")
}

func applyTargetType(_ *Options, v string) error {
	switch v {
	case "netns":
		return nil
	case "bess":
		return errors.New("is not supported: only network namespaces are")
	}
	return errors.New("want netns")
}
