package pasta

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"cleat/compat/getopt"
	"cleat/sandbox"
)

// Options is a parsed command line, validated as far as possible without examining the
// host.
type Options struct {
	Version, Help bool

	Debug, Quiet, Foreground bool
	LogFile                  string
	LogBytes                 int64 // 0 means 1 MiB
	RunAs                    string
	PIDFile, Pcap            string

	Interface string // device name inside; "" means the template's
	MTU       int    // bytes; 0 means 65520
	KeepMTU   bool   // --mtu 0: keep the kernel's default, 1500

	Addr4, Addr6       netip.Prefix
	Netmask            int // bits; 0 if not given
	Gateway4, Gateway6 netip.Addr
	OnlyIPv4, OnlyIPv6 bool

	Template             string // --interface
	Outbound4, Outbound6 netip.Addr
	OutLink4, OutLink6   string

	MAC, GatewayMAC               sandbox.MAC // --ns-mac-addr and --mac-addr; zero if not given
	NoDHCP, NoDHCPv6, NoNDP, NoRA bool
	AnnounceDNS, AnnounceSearch   bool         // --dhcp-dns, --dhcp-search
	DNS                           []netip.Addr // to announce; nil means the host's
	Search                        []string     // likewise
	Hostname, FQDN                string

	DNSForward, DNSHost []netip.Addr // at most one a family
	MapLoopback         []netip.Addr // at most one a family
	NoMapGateway        bool
	MapGuest            []netip.Addr // at most one a family

	NoTCP, NoUDP, NoICMP bool
	// TCP and UDP are port specifications from the host inward, TCPOut and UDPOut from
	// the namespace outward, as written and in order.
	TCP, UDP, TCPOut, UDPOut []string

	Configure              bool // --config-net
	NetNS, UserNS          string
	NetNSOnly, NoNetNSQuit bool
	NoPIDNS                bool
	PID                    int      // attach to this process's namespaces; 0 if not given
	Command                []string // run this in new namespaces

	Notices []string // accepted options that the user should know about
}

// Parse parses the arguments after the program's name. The error is a *getopt.Error for a
// syntax error, and otherwise names the invalid option and the reason.
func Parse(args []string) (Options, error) {
	var o Options
	rest, err := table().Read(&o, args)
	switch {
	case errors.Is(err, getopt.ErrStop):
		return o, nil
	case err != nil:
		return o, err
	}
	if err := o.target(rest); err != nil {
		return o, err
	}
	return o, o.consistent()
}

// target parses the remaining arguments: a process id alone, or a command.
func (o *Options) target(rest []string) error {
	if o.NetNS != "" && len(rest) > 0 {
		return errors.New("both --netns and PID or command given")
	}
	if len(rest) == 1 {
		if n, err := strconv.ParseInt(rest[0], 10, 64); err == nil {
			if n <= 0 || n > 1<<31-1 {
				return fmt.Errorf("invalid PID %s", rest[0])
			}
			o.PID = int(n)
			return nil
		}
	}
	o.Command = rest
	return nil
}

// Attaches reports whether the namespace already exists.
func (o *Options) Attaches() bool { return o.PID != 0 || o.NetNS != "" }

func (o *Options) consistent() error {
	switch {
	case o.NoPIDNS && o.Attaches():
		return errors.New("--no-pidns can't be combined with a PID or --netns")
	case o.UserNS != "" && !o.Attaches():
		return errors.New("--userns requires a PID or --netns")
	case o.NetNSOnly && !o.Attaches():
		return errors.New("--netns-only requires a PID or --netns: a new network namespace needs a user namespace, too")
	case o.OutLink4 != "" && !o.OnlyIPv4 && o.OutLink6 != o.OutLink4,
		o.OutLink6 != "" && !o.OnlyIPv6 && o.OutLink6 != o.OutLink4:
		return errors.New("--outbound-if4 and --outbound-if6 must name the same link, unless -4 or -6 is given")
	}
	return nil
}

// Apply functions for common kinds of options.

func text(field func(*Options) *string) func(*Options, string) error {
	return func(o *Options, v string) error {
		if v == "" {
			return errors.New("is empty")
		}
		*field(o) = v
		return nil
	}
}

func list(field func(*Options) *[]string) func(*Options, string) error {
	return func(o *Options, v string) error {
		*field(o) = append(*field(o), v)
		return nil
	}
}

// passtOnly is for options of passt(1).
func passtOnly(*Options, string) error { return errors.New("is for passt, not for pasta") }

// pair keeps at most one address a family, the last one given.
func pair(field func(*Options) *[]netip.Addr, ok func(netip.Addr) bool) func(*Options, string) error {
	return func(o *Options, v string) error {
		a, err := netip.ParseAddr(v)
		if err != nil || !ok(a) {
			return errors.New("is not a usable address")
		}
		others := slices.DeleteFunc(*field(o), func(b netip.Addr) bool { return b.Is4() == a.Is4() })
		*field(o) = append(others, a)
		return nil
	}
}

// ofEither is for options that take one address of each family.
func ofEither(wrong string, fields func(*Options) (four, six *netip.Addr)) func(*Options, string) error {
	return func(o *Options, v string) error {
		a, err := netip.ParseAddr(v)
		if err != nil || !plain(a) {
			return errors.New(wrong)
		}
		field, six := fields(o)
		if a.Is6() {
			field = six
		}
		*field = a
		return nil
	}
}

// ofFamily returns the address of the family in the list, or an invalid one.
func ofFamily(list []netip.Addr, four bool) netip.Addr {
	for _, a := range list {
		if a.Is4() == four {
			return a
		}
	}
	return netip.Addr{}
}

// plain reports whether a can be the address of a host on a network.
func plain(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// specified reports whether a is plain or loopback.
func specified(a netip.Addr) bool {
	return plain(a) || a.IsValid() && a.Zone() == "" && a.IsLoopback()
}
