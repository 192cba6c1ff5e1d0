package pasta

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"

	"cleat/compat/getopt"
	"cleat/sandbox"
)

// table lists the options of pasta(1), in the order of its help.
func table() getopt.Table[Options] {
	return getopt.Table[Options]{InOrder: true, Rows: []getopt.Row[Options]{
		{Name: "debug", Short: 'd', Help: "Log more; in the foreground, also errors of flows", Apply: func(o *Options, _ string) error { o.Debug, o.Quiet = true, false; return nil }},
		{Name: "trace", Help: "Same as --debug; use --pcap for single packets", Apply: applyTrace},
		{Name: "stats", Arg: "DELAY", Apply: getopt.Refuse[Options]("use 'cleat ctl' for the counters of a running network")},
		{Name: "quiet", Short: 'q', Help: "Log errors only", Apply: func(o *Options, _ string) error { o.Debug, o.Quiet = false, true; return nil }},
		{Name: "foreground", Short: 'f', Help: "Stay in the foreground", Apply: getopt.Set(func(o *Options) *bool { return &o.Foreground })},
		{Name: "stderr", Short: 'e', Apply: getopt.Accept[Options]}, // no effect in pasta either
		{Name: "log-file", Short: 'l', Arg: "PATH", Help: "Log to this file only", Apply: text(func(o *Options) *string { return &o.LogFile })},
		{Name: "log-size", Arg: "BYTES", Help: "Maximum size of the log file; default 1048576", Apply: applyLogSize},
		{Name: "runas", Arg: "USER", Help: "Run as UID, UID:GID, LOGIN or LOGIN:GROUP; default for root: nobody", Apply: text(func(o *Options) *string { return &o.RunAs })},
		{Name: "conf-path", Short: 'c', Arg: "PATH", Apply: getopt.Refuse[Options]("there is no socket for pesto(1)")},
		{Name: "help", Short: 'h', Help: "Show this help", Apply: getopt.Last(func(o *Options) *bool { return &o.Help })},
		{Name: "version", Help: "Show the version", Apply: getopt.Last(func(o *Options) *bool { return &o.Version })},

		{Name: "ns-ifname", Short: 'I', Arg: "NAME", Help: "Name of the device inside; default: that of the host's link", Apply: applyName},
		{Name: "pcap", Short: 'p', Arg: "FILE", Help: "Write the device's packets to a file", Apply: text(func(o *Options) *string { return &o.Pcap })},
		{Name: "pid", Short: 'P', Arg: "FILE", Help: "Write the process id to a file once the network works", Apply: text(func(o *Options) *string { return &o.PIDFile })},
		{Name: "mtu", Short: 'm', Arg: "MTU", Help: "MTU of the device; 0 keeps the kernel's default; default 65520", Apply: applyMTU},
		{Name: "address", Short: 'a', Arg: "ADDR[/LEN]", Help: "The namespace's IPv4 or IPv6 address; default: the host's", Apply: applyAddress},
		{Name: "netmask", Short: 'n', Arg: "MASK", Help: "Its IPv4 netmask, dotted or bits; default: the host's", Apply: applyNetmask},
		{Name: "mac-addr", Short: 'M', Arg: "ADDR", Help: "MAC address of the gateway and of all others; default 9a:55:9a:55:9a:55", Apply: mac(func(o *Options) *sandbox.MAC { return &o.GatewayMAC })},
		{Name: "gateway", Short: 'g', Arg: "ADDR", Help: "The IPv4 or IPv6 default gateway; default: the host's", Apply: ofEither("is not a usable gateway address", func(o *Options) (four, six *netip.Addr) { return &o.Gateway4, &o.Gateway6 })},
		{Name: "interface", Short: 'i', Arg: "NAME", Help: "Take addresses from this link of the host; default: that of the default route", Apply: text(func(o *Options) *string { return &o.Template })},
		{Name: "outbound", Short: 'o', Arg: "ADDR", Help: "Source address of the host's sockets; default: the host's routes decide", Apply: ofEither("is not a usable source address", func(o *Options) (four, six *netip.Addr) { return &o.Outbound4, &o.Outbound6 })},
		{Name: "outbound-if4", Arg: "NAME", Help: "Bind IPv4 sockets to this link", Apply: text(func(o *Options) *string { return &o.OutLink4 })},
		{Name: "outbound-if6", Arg: "NAME", Help: "Bind IPv6 sockets to this link", Apply: text(func(o *Options) *string { return &o.OutLink6 })},
		{Name: "dns", Short: 'D', Arg: "ADDR", Help: "Nameserver to announce with --dhcp-dns; default: the host's. 'none' announces none, and cancels --dns-forward and --dns-host", Apply: applyDNS},
		{Name: "search", Short: 'S', Arg: "LIST", Help: "Search domains to announce with --dhcp-search, or none; default: the host's", Apply: applySearch},
		{Name: "hostname", Short: 'H', Arg: "NAME", Help: "Host name to announce by DHCP", Apply: text(func(o *Options) *string { return &o.Hostname })},
		{Name: "fqdn", Arg: "NAME", Help: "Full host name to announce by DHCP and DHCPv6", Apply: text(func(o *Options) *string { return &o.FQDN })},
		{Name: "dhcp-dns", Help: "Announce nameservers by DHCP, DHCPv6 and router advertisements", Apply: getopt.Set(func(o *Options) *bool { return &o.AnnounceDNS })},
		{Name: "no-dhcp-dns", Apply: passtOnly},
		{Name: "dhcp-search", Help: "Announce search domains in the same way", Apply: getopt.Set(func(o *Options) *bool { return &o.AnnounceSearch })},
		{Name: "no-dhcp-search", Apply: passtOnly},
		{Name: "map-host-loopback", Arg: "ADDR", Help: "Address that leads to the host's loopback, or none; default: the gateway", Apply: applyMapLoopback},
		{Name: "map-guest-addr", Arg: "ADDR", Help: "Address that leads to the host's own address, of which the namespace has a copy", Apply: applyMapGuest},
		{Name: "dns-forward", Arg: "ADDR", Help: "Address whose port 53 leads to the host's resolver", Apply: pair(func(o *Options) *[]netip.Addr { return &o.DNSForward }, plain)},
		{Name: "dns-host", Arg: "ADDR", Help: "The host's resolver; default: the first of /etc/resolv.conf that answers", Apply: pair(func(o *Options) *[]netip.Addr { return &o.DNSHost }, specified)},
		{Name: "no-tcp", Help: "Drop all TCP", Apply: getopt.Set(func(o *Options) *bool { return &o.NoTCP })},
		{Name: "no-udp", Help: "Drop all UDP", Apply: getopt.Set(func(o *Options) *bool { return &o.NoUDP })},
		{Name: "no-icmp", Help: "Drop all pings; implies --no-ndp", Apply: getopt.Set(func(o *Options) *bool { return &o.NoICMP })},
		{Name: "no-dhcp", Help: "Don't answer DHCP", Apply: getopt.Set(func(o *Options) *bool { return &o.NoDHCP })},
		{Name: "no-ndp", Help: "Don't answer neighbour and router solicitations", Apply: getopt.Set(func(o *Options) *bool { return &o.NoNDP })},
		{Name: "no-dhcpv6", Help: "Don't answer DHCPv6", Apply: getopt.Set(func(o *Options) *bool { return &o.NoDHCPv6 })},
		{Name: "no-ra", Help: "Don't answer router solicitations; implied by --config-net", Apply: getopt.Set(func(o *Options) *bool { return &o.NoRA })},
		{Name: "freebind", Apply: getopt.Refuse[Options]("listening addresses must be the host's")},
		{Name: "map-gw", Help: "The gateway's address leads to the host's loopback (default)", Apply: func(o *Options, _ string) error { o.NoMapGateway = false; return nil }},
		{Name: "no-map-gw", Help: "The gateway's address does not lead to the host's loopback", Apply: getopt.Set(func(o *Options) *bool { return &o.NoMapGateway })},
		{Name: "chroot-fallback", Help: "Accepted: there is no chroot that could fail", Apply: getopt.Accept[Options]},
		{Name: "ipv4-only", Short: '4', Help: "Disable IPv6", Apply: func(o *Options, _ string) error { o.OnlyIPv4, o.OnlyIPv6 = true, false; return nil }},
		{Name: "ipv6-only", Short: '6', Help: "Disable IPv4", Apply: func(o *Options, _ string) error { o.OnlyIPv4, o.OnlyIPv6 = false, true; return nil }},

		{Name: "tcp-ports", Short: 't', Arg: "SPEC", Help: "Forward TCP ports of the host inward; default: auto", Apply: list(func(o *Options) *[]string { return &o.TCP })},
		{Name: "udp-ports", Short: 'u', Arg: "SPEC", Help: "The same for UDP", Apply: list(func(o *Options) *[]string { return &o.UDP })},
		{Name: "tcp-ns", Short: 'T', Arg: "SPEC", Help: "Forward TCP ports of the namespace's loopback to the host's; default: auto", Apply: list(func(o *Options) *[]string { return &o.TCPOut })},
		{Name: "udp-ns", Short: 'U', Arg: "SPEC", Help: "The same for UDP", Apply: list(func(o *Options) *[]string { return &o.UDPOut })},
		{Name: "host-lo-to-ns-lo", Apply: getopt.Refuse[Options]("connections to the host's loopback arrive at the namespace's own address")},

		{Name: "userns", Arg: "PATH", Help: "User namespace to join", Apply: func(o *Options, v string) error { o.UserNS, o.NetNSOnly = v, false; return nil }},
		{Name: "netns", Arg: "PATH|NAME", Help: "Network namespace to join", Apply: applyNetNS},
		{Name: "netns-only", Help: "Join no user namespace", Apply: func(o *Options, _ string) error { o.UserNS, o.NetNSOnly = "", true; return nil }},
		{Name: "no-netns-quit", Help: "Stay when the namespace's path vanishes", Apply: getopt.Set(func(o *Options) *bool { return &o.NoNetNSQuit })},
		{Name: "no-pidns", Help: "Accepted: the command keeps the caller's PID namespace", Apply: getopt.Set(func(o *Options) *bool { return &o.NoPIDNS })},
		{Name: "config-net", Help: "Configure addresses and routes in the namespace", Apply: getopt.Set(func(o *Options) *bool { return &o.Configure })},
		{Name: "no-copy-routes", Help: "Accepted: a default route leads everything to the device", Apply: noEffect("--no-copy-routes")},
		{Name: "no-copy-addrs", Help: "Accepted: only one address of each family is configured", Apply: noEffect("--no-copy-addrs")},
		{Name: "ns-mac-addr", Arg: "ADDR", Help: "MAC address of the device inside; default: a random one", Apply: mac(func(o *Options) *sandbox.MAC { return &o.MAC })},
		{Name: "no-splice", Help: "Accepted: local connections take the same path as others", Apply: getopt.Accept[Options]},
		{Name: "splice-only", Apply: getopt.Refuse[Options]("there is always a device; -T and -U forward loopback ports")},

		{Name: "socket", Short: 's', Arg: "PATH", Apply: passtOnly},
		{Name: "socket-path", Arg: "PATH", Apply: passtOnly},
		{Name: "fd", Short: 'F', Arg: "FD", Apply: getopt.Refuse[Options]("the device is created in the namespace")},
		{Name: "one-off", Short: '1', Apply: passtOnly},
		{Name: "vhost-user", Apply: passtOnly},
		{Name: "print-capabilities", Apply: passtOnly},
		{Name: "repair-path", Arg: "PATH", Apply: passtOnly},
		{Name: "migrate-exit", Apply: passtOnly},
		{Name: "migrate-no-linger", Apply: passtOnly},
	}}
}

func applyTrace(o *Options, _ string) error {
	o.Debug, o.Quiet = true, false
	o.Notices = append(o.Notices, "--trace does not log single packets here: use --pcap FILE")
	return nil
}

// Minimum and default of --log-size, in bytes.
const (
	smallestLog = 16 << 10 // about a hundred lines after half of them are dropped
	usualLog    = 1 << 20  // as in pasta
)

func applyLogSize(o *Options, v string) error {
	n, err := strconv.ParseInt(v, 0, 64)
	if err != nil || n < smallestLog {
		return fmt.Errorf("want a number of bytes, at least %d", smallestLog)
	}
	o.LogBytes = n
	return nil
}

func applyName(o *Options, v string) error {
	if v == "" || len(v) > 15 {
		return errors.New("a link name has 1 to 15 bytes")
	}
	o.Interface = v
	return nil
}

func applyMTU(o *Options, v string) error {
	n, err := strconv.ParseUint(v, 0, 32)
	switch {
	case err != nil:
		return errors.New("want a number of bytes")
	case n > 65520:
		return errors.New("is too large (max 65520)")
	case n != 0 && n < 576:
		return errors.New("is too small (min 576)")
	}
	o.MTU, o.KeepMTU = int(n), n == 0
	return nil
}

func applyAddress(o *Options, v string) error {
	p, err := netip.ParsePrefix(v)
	if err == nil && p.Addr().Is4() && o.Netmask > 0 {
		return errors.New("the prefix length is given twice")
	}
	if err != nil {
		a, err := netip.ParseAddr(v)
		if err != nil {
			return errors.New("is not an address")
		}
		p = netip.PrefixFrom(a, classBits(a))
		if a.Is4() && o.Netmask != 0 {
			p = netip.PrefixFrom(a, o.Netmask)
		}
	} else if p.Addr().Is4() {
		o.Netmask = -1 // a later --netmask would be a second one
	}
	if !plain(p.Addr()) {
		return errors.New("is not a usable address")
	}
	if p.Addr().Is4() {
		o.Addr4 = p
	} else {
		o.Addr6 = netip.PrefixFrom(p.Addr(), 64)
	}
	return nil
}

// classBits returns the default prefix length of an address: that of its class, or 64 for
// IPv6.
func classBits(a netip.Addr) int {
	if !a.Is4() {
		return 64
	}
	if n, _ := net.IP(a.AsSlice()).DefaultMask().Size(); n != 0 {
		return n
	}
	return 32 // class D and E have no networks
}

func applyNetmask(o *Options, v string) error {
	if o.Netmask == -1 {
		return errors.New("the prefix length is given twice")
	}
	bits, err := strconv.Atoi(v)
	if a, dotted := netip.ParseAddr(v); dotted == nil && a.Is4() {
		var size int
		if bits, size = net.IPMask(a.AsSlice()).Size(); size == 0 {
			return errors.New("is not a netmask")
		}
		err = nil
	}
	if err != nil || bits < 1 || bits > 32 {
		return errors.New("is not a netmask")
	}
	o.Netmask = bits
	if o.Addr4.IsValid() {
		o.Addr4 = netip.PrefixFrom(o.Addr4.Addr(), bits)
	}
	return nil
}

func applyDNS(o *Options, v string) error {
	if v == "none" {
		o.DNSForward, o.DNSHost, o.DNS = nil, nil, []netip.Addr{}
		return nil
	}
	a, err := netip.ParseAddr(v)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return errors.New("is not an address")
	}
	o.DNS = append(o.DNS, a)
	return nil
}

func applySearch(o *Options, v string) error {
	if v == "none" {
		o.Search = []string{}
		return nil
	}
	o.Search = append(o.Search, v)
	return nil
}

// mac is for options that take the Ethernet address of one station. pasta takes dashes as well
// as colons.
func mac(field func(*Options) *sandbox.MAC) func(*Options, string) error {
	return func(o *Options, v string) error {
		m, err := sandbox.ParseMAC(v)
		if err != nil || !m.Unicast() {
			return errors.New("is not the MAC address of one station")
		}
		*field(o) = m
		return nil
	}
}

func applyMapLoopback(o *Options, v string) error {
	if v == "none" {
		o.MapLoopback, o.NoMapGateway = nil, true
		return nil
	}
	return pair(func(o *Options) *[]netip.Addr { return &o.MapLoopback }, plain)(o, v)
}

func applyMapGuest(o *Options, v string) error {
	if v == "none" {
		o.MapGuest = nil
		return nil
	}
	return pair(func(o *Options) *[]netip.Addr { return &o.MapGuest }, plain)(o, v)
}

func applyNetNS(o *Options, v string) error {
	if v == "" {
		return errors.New("is empty")
	}
	o.NetNS = v
	if filepath.Base(v) == v {
		o.NetNS = filepath.Join("/run/netns", v)
	}
	return nil
}

// noEffect is for options without effect, which is logged.
func noEffect(option string) func(*Options, string) error {
	return func(o *Options, _ string) error {
		o.Notices = append(o.Notices, option+" has no effect: this is always so")
		return nil
	}
}
