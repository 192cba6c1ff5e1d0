package slirp4netns

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"cleat/compat/getopt"
)

// Options is what a command line asked for, checked as far as it can be without
// looking at the host.
type Options struct {
	Version, Help bool

	Configure       bool
	ExitFD, ReadyFD int // -1: none
	MTU             int // bytes
	CIDR            netip.Prefix
	NoHostLoopback  bool
	IPv6, NoDNS     bool
	UserNS          string
	APISocket       string
	// Outbound4 and Outbound6 are addresses to send from, or names of links whose
	// addresses are meant; "": the host's routes decide.
	Outbound4, Outbound6 string

	PID       int    // of a process in the namespace; 0: Path
	Path      string // of the namespace
	Interface string // the device's name inside

	byPath  bool
	Notices []string // what was accepted and is to be told
}

// UsageError is a command line that goes with the usage.
type UsageError struct{ Text string }

// Error is the text.
func (e *UsageError) Error() string { return e.Text }

// errStop ends the reading of options: --help and --version do so.
var errStop = errors.New("no more options")

// row is one option: how it is spelled and what it does.
type row struct {
	name  string
	short byte
	arg   string // the argument's name in the help; "": takes none
	help  string // "": not shown
	apply func(o *Options, value string) error
}

// table is every option of slirp4netns(1), in the order of its help.
func table() []row {
	flag := func(field func(*Options) *bool) func(*Options, string) error {
		return func(o *Options, _ string) error { *field(o) = true; return nil }
	}
	word := func(field func(*Options) *string) func(*Options, string) error {
		return func(o *Options, v string) error { *field(o) = v; return nil }
	}
	noLoopback := flag(func(o *Options) *bool { return &o.NoHostLoopback })
	always := func(*Options, string) error { return nil }
	return []row{
		{"configure", 'c', "", "set the device up, and lo", flag(func(o *Options) *bool { return &o.Configure })},
		{"exit-fd", 'e', "FD", "exit when this descriptor hangs up", descriptor(func(o *Options) *int { return &o.ExitFD })},
		{"ready-fd", 'r', "FD", "write 1 to this descriptor when the network works", descriptor(func(o *Options) *int { return &o.ReadyFD })},
		{"mtu", 'm', "MTU", "the device's MTU (default=1500, max=65520)", applyMTU},
		{"enable-ipv6", '6', "", "IPv6 as well: fd00::/64, the guest fd00::100", flag(func(o *Options) *bool { return &o.IPv6 })},
		{"api-socket", 'a', "PATH", "listen for requests on a socket at this path", word(func(o *Options) *string { return &o.APISocket })},
		{"cidr", 0, "CIDR", "the network, prefix length 1 to 25 (default=10.0.2.0/24)", applyCIDR},
		{"disable-host-loopback", 0, "", "keep the namespace from the host's 127.0.0.1", noLoopback},
		{"no-host-loopback", 0, "", "", noLoopback},
		{"netns-type", 0, "TYPE", "what names the namespace: pid or path (default=pid)", applyNetNSType},
		{"userns-path", 0, "PATH", "the user namespace to join first", word(func(o *Options) *string { return &o.UserNS })},
		{"enable-sandbox", 0, "", "always so: no privilege is kept and no file can be opened", always},
		{"create-sandbox", 0, "", "", always},
		{"enable-seccomp", 0, "", "always so: few system calls are left", always},
		{"outbound-addr", 0, "IPv4|LINK", "the address to send IPv4 from", word(func(o *Options) *string { return &o.Outbound4 })},
		{"outbound-addr6", 0, "IPv6|LINK", "the address to send IPv6 from", word(func(o *Options) *string { return &o.Outbound6 })},
		{"disable-dns", 0, "", "no resolver in the network", flag(func(o *Options) *bool { return &o.NoDNS })},
		{"macaddress", 0, "MAC", "", refuse("the device is a TUN, which has no MAC address")},
		{"target-type", 0, "TYPE", "netns, which is the default; bess is not supported", applyTargetType},
		{"help", 'h', "", "show this help and exit", func(o *Options, _ string) error { o.Help = true; return errStop }},
		{"version", 'v', "", "show version and exit", func(o *Options, _ string) error { o.Version = true; return errStop }},
	}
}

// Parse reads the arguments after the program's name. The error is a *UsageError
// where the form is wrong, and otherwise says which option can't be, and why.
func Parse(args []string) (Options, error) {
	o := Options{ExitFD: -1, ReadyFD: -1, MTU: 1500, CIDR: netip.MustParsePrefix("10.0.2.0/24")}
	var grammar getopt.Grammar
	does := map[string]func(*Options, string) error{}
	for _, r := range table() {
		opt := getopt.Option{Name: r.name, Short: r.short, ID: r.name}
		if r.arg != "" {
			opt.Arity = getopt.Required
		}
		grammar.Options = append(grammar.Options, opt)
		does[r.name] = r.apply
	}
	met, rest, wrong := grammar.Parse(args)
	for _, m := range met {
		if err := does[m.ID](&o, m.Value); errors.Is(err, errStop) {
			return o, nil
		} else if err != nil {
			return o, fmt.Errorf("%s: %w", strings.TrimSuffix(m.As+" "+m.Value, " "), err)
		}
	}
	if wrong != nil {
		return o, &UsageError{Text: wrong.Error()}
	}
	return o, o.target(rest)
}

// target reads PID|PATH and the device's name. More was always let through.
func (o *Options) target(rest []string) error {
	if len(rest) == 0 {
		return &UsageError{Text: "a namespace is missing: PID, or a path with --netns-type=path"}
	}
	o.Interface = "tap0"
	if len(rest) > 1 {
		o.Interface = rest[1]
	}
	if o.Interface == "" || len(o.Interface) > 15 {
		return fmt.Errorf("device %q: a link's name has 1 to 15 bytes", o.Interface)
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
		return &UsageError{Text: fmt.Sprintf("PID %q is no positive integer; for a path give --netns-type=path", rest[0])}
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

func applyCIDR(o *Options, v string) error {
	p, err := netip.ParsePrefix(v)
	switch {
	case err != nil || !p.Addr().Is4():
		return errors.New("is no IPv4 network in CIDR form")
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
		return errors.New("is not supported: the device is made in the namespace")
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

func refuse(why string) func(*Options, string) error {
	return func(*Options, string) error { return errors.New("is not supported: " + why) }
}
