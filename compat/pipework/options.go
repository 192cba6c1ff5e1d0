package pipework

import (
	"crypto/md5"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/spell"
	"cleat/link"
)

// Options is a parsed command line, validated as far as possible without examining the
// host.
type Options struct {
	Help, Version bool
	Wait          bool     // wait until Link is up
	Tool          []string // ip or tc with arguments, to run in Guest's namespace; nil: attach

	Host       string // device or bridge, or "mac:" and an address
	DirectPhys bool   // move the device itself
	IPvlan     bool   // use ipvlan instead of macvlan
	Link       string // -i: the link's name in the container; "" means eth1, or ib0 for InfiniBand
	HostEnd    string // -l: the other end's name on a bridge; "" means any
	Family     int    // -a: 4 or 6; 0 means either
	HostName   string // -H: host name for DHCP

	Guest   string
	DHCP    *DHCP        // nil: a static address, or none
	IP      netip.Prefix // zero if none
	Gateway netip.Addr   // zero if none
	MAC     link.MAC     // zero means any
	VLAN    string       // as typed; "" if none
}

// DHCP is a DHCP client named on the command line.
type DHCP struct {
	Client  string // one of dhcpClients
	Options string // options for that client
}

// dhcpClients returns the names that request an address from a server. With -f, the
// script leaves the client running to renew the lease. Here the keeper renews all leases.
func dhcpClients() []string {
	return []string{"dhcp", "udhcpc", "udhcpc-f", "dhcpcd", "dhclient", "dhclient-f"}
}

// Error is a mistake in the command line, an unsupported feature, or another error with a
// hint.
type Error struct {
	err     error
	hint    string
	lacking bool // the script supports it and this package does not
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Hint returns what to type instead; it may be empty.
func (e *Error) Hint() string { return e.hint }

func wrong(hint, format string, a ...any) error {
	return &Error{err: fmt.Errorf(format, a...), hint: hint}
}

// lacking returns an error for what the script supports and this package does not.
func lacking(hint, format string, a ...any) error {
	return &Error{err: fmt.Errorf(format, a...), hint: hint, lacking: true}
}

// defaultLink is the name of a link in the container without -i.
const defaultLink = "eth1"

// Parse parses a command line without the program's name. The error is an *Error.
func Parse(args []string) (Options, error) {
	if len(args) == 0 {
		return Options{}, wrong("e.g. `pipework br1 web 192.0.2.10/24`; `pipework --help` has all forms", "no HOSTIF given")
	}
	switch first, rest := args[0], args[1:]; first {
	case "--help", "-h":
		return Options{Help: true}, nil
	case "--version":
		return Options{Version: true}, nil
	case "--wait":
		return parseWait(rest)
	case "route", "rule":
		return parseTool([]string{"ip", first}, first, rest)
	case "tc":
		return parseTool([]string{"tc"}, first, rest)
	}
	return parseAttach(args)
}

func parseWait(args []string) (Options, error) {
	o := Options{Wait: true, Link: defaultLink}
	switch {
	case len(args) == 0:
		return o, nil
	case args[0] != "-i":
		return o, wrong("e.g. `pipework --wait -i eth2`", "--wait: unknown argument %q", args[0])
	case len(args) == 1:
		return o, noValue("-i")
	case len(args) > 2:
		return o, wrong("e.g. `pipework --wait -i eth2`", "--wait: unknown argument %q", args[2])
	}
	o.Link = args[1]
	return o, nil
}

func parseTool(command []string, word string, args []string) (Options, error) {
	if len(args) < 2 {
		return Options{}, wrong(fmt.Sprintf("e.g. `pipework %s web show`", word), "%s: want GUEST and the arguments of `%s`", word, strings.Join(command, " "))
	}
	return Options{Guest: args[0], Tool: append(command, args[1:]...)}, nil
}

func parseAttach(args []string) (Options, error) {
	o, words, err := parseFlags(args)
	if err != nil {
		return o, err
	}
	switch len(words) {
	case 0:
		return o, wrong("e.g. `pipework br1 web 192.0.2.10/24`", "no HOSTIF given")
	case 1:
		return o, wrong(fmt.Sprintf("e.g. `pipework %s web 192.0.2.10/24`", words[0]), "no GUEST given")
	case 2:
		return o, wrong(fmt.Sprintf("e.g. `pipework %s %s 192.0.2.10/24`; 0/0 for none", words[0], words[1]), "no address given")
	case 3, 4:
	default:
		return o, wrong("an Ethernet address and a VLAN are one word: MAC@VLAN", "too many arguments: %s", strings.Join(words[4:], " "))
	}
	o.Host, o.Guest = words[0], words[1]
	if err := o.parseAddress(words[2]); err != nil {
		return o, err
	}
	if len(words) == 4 {
		if err := o.parseMAC(words[3]); err != nil {
			return o, err
		}
	}
	return o, o.checkFamily()
}

// foreign are options of the script's forks.
var foreign = map[string]string{
	"--save":    "`cleat ls` lists what is attached",
	"--restore": "attachments are kept without it: `cleat ls` lists them",
}

// parseFlags parses the options, which must precede GUEST.
func parseFlags(args []string) (o Options, words []string, err error) {
	values := map[string]*string{"-i": &o.Link, "-l": &o.HostEnd, "-H": &o.HostName}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		hint, isForeign := foreign[arg]
		switch {
		case !strings.HasPrefix(arg, "-"):
			words = append(words, arg)
		case len(words) > 1:
			return o, nil, wrong(fmt.Sprintf("e.g. `pipework %s -i eth2 %s 192.0.2.10/24`", words[0], words[1]), "%s: options must precede GUEST", arg)
		case arg == "--direct-phys":
			o.DirectPhys = true
		case arg == "--ipvlan":
			o.IPvlan = true
		case arg == "--wait":
			return o, nil, wrong("e.g. `pipework --wait -i eth2`", "--wait must come first")
		case isForeign:
			return o, nil, lacking(hint, "%s is not supported", arg)
		case arg != "-a" && values[arg] == nil:
			return o, nil, wrong(spell.Hint(arg, []string{"-i", "-l", "-a", "-H", "--ipvlan", "--direct-phys", "--wait", "--help", "--version"}), "unknown option %s", arg)
		case i+1 == len(args):
			return o, nil, noValue(arg)
		default:
			i++
			if arg == "-a" {
				err = o.parseFamily(args[i])
			} else {
				*values[arg] = args[i]
			}
		}
		if err != nil {
			return o, nil, err
		}
	}
	if o.IPvlan && o.DirectPhys {
		return o, nil, wrong("leave one of them out", "--ipvlan and --direct-phys exclude each other")
	}
	return o, words, nil
}

func noValue(option string) error {
	return wrong(fmt.Sprintf("`pipework --help` describes %s", option), "%s: value missing", option)
}

func (o *Options) parseFamily(text string) error {
	known := map[string]int{"inet": 4, "4": 4, "inet6": 6, "6": 6}
	if o.Family = known[text]; o.Family == 0 {
		return wrong("known: inet, inet6", "-a %s: no such family", text)
	}
	return nil
}

func (o Options) checkFamily() error {
	is := 4
	if o.IP.Addr().Is6() {
		is = 6
	}
	if o.Family != 0 && o.IP.IsValid() && o.Family != is {
		return wrong("leave out -a", "%s does not belong to the family given with -a", o.IP)
	}
	return nil
}

// parseAddress parses the word after GUEST.
func (o *Options) parseAddress(text string) error {
	client, options, _ := strings.Cut(text, ":")
	if slices.Contains(dhcpClients(), client) {
		o.DHCP = &DHCP{client, options}
		return nil
	}
	ip, gateway, hasGateway := strings.Cut(text, "@")
	if err := o.parsePrefix(ip); err != nil || !hasGateway {
		return err
	}
	gw, err := netip.ParseAddr(gateway)
	switch {
	case err != nil:
		return wrong("e.g. 192.0.2.10/24@192.0.2.1", "%s: gateway %q is not an address", text, gateway)
	case o.IP.IsValid() && o.IP.Addr().Is4() != gw.Is4():
		return wrong("e.g. 192.0.2.10/24@192.0.2.1", "%s: the gateway belongs to the other family", text)
	}
	o.Gateway = gw
	return nil
}

// parsePrefix parses an address with a prefix length or a netmask.
func (o *Options) parsePrefix(text string) error {
	ip, length, hasLength := strings.Cut(text, "/")
	if hasLength && length == "0" && slices.Contains([]string{"0", "0.0.0.0", "::"}, ip) {
		return nil
	}
	a, err := netip.ParseAddr(ip)
	switch {
	case err != nil && !hasLength:
		return wrong(spell.Hint(text, dhcpClients()), "%s is neither ADDRESS/LENGTH nor the name of a DHCP client", text)
	case err != nil:
		return wrong("e.g. 192.0.2.10/24, or 0/0 for none", "%s: %q is not an address", text, ip)
	case !hasLength:
		return wrong(fmt.Sprintf("maybe %s/%d", ip, map[bool]int{true: 24, false: 64}[a.Is4()]), "%s: prefix length missing", text)
	}
	if mask, err := netip.ParseAddr(length); err == nil && mask.Is4() && a.Is4() {
		bits, size := net.IPMask(mask.AsSlice()).Size()
		if size == 0 {
			return wrong("e.g. 255.255.255.0, or 24", "%s is not a netmask", mask)
		}
		o.IP = netip.PrefixFrom(a, bits)
		return nil
	}
	if o.IP, err = netip.ParsePrefix(text); err != nil {
		return wrong("e.g. 192.0.2.10/24", "%s: %q is not a prefix length", text, length)
	}
	return nil
}

// parseMAC parses [MAC][@VLAN]. The VLAN is validated once the kind of link is known.
func (o *Options) parseMAC(text string) error {
	mac, vlan, _ := strings.Cut(text, "@")
	o.VLAN = vlan
	word, unique := strings.CutPrefix(mac, "U:")
	switch {
	case mac == "":
		return nil
	case unique && word == "":
		return wrong("e.g. U:web", "%s: the word after U: is missing", text)
	case unique:
		// An address that depends only on the word: 02 and the first five bytes of the MD5
		// sum of a line with the word, as the script computes it with echo and md5sum.
		sum := md5.Sum([]byte(word + "\n"))
		o.MAC = link.MAC{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
		return nil
	}
	m, err := link.ParseMAC(mac)
	if err != nil {
		return wrong("e.g. 02:00:5e:10:00:01, U:WORD, or @10 for a VLAN alone", "%s: %q is not an Ethernet address", text, mac)
	}
	o.MAC = m
	return nil
}
