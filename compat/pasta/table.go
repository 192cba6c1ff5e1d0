package pasta

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"

	"cleat/compat/getopt"
)

// table is every option of pasta(1), in the order of its help.
func table() []row {
	const noDHCP = "there is no DHCP or router advertisement here; --config-net sets the namespace up"
	return []row{
		{"debug", 'd', "", "Say more; in the foreground, what is wrong with flows too", applyDebug},
		{"trace", 0, "", "The same; single packets are for --pcap", applyTrace},
		{"stats", 0, "DELAY", "", refuse("see 'cleat ctl' for a running network's counters")},
		{"quiet", 'q', "", "Say nothing but errors", applyQuiet},
		{"foreground", 'f', "", "Don't run in the background", set(func(o *Options) *bool { return &o.Foreground })},
		{"stderr", 'e', "", "", meaningless}, // has no effect in pasta either
		{"log-file", 'l', "PATH", "Log to this file only", text(func(o *Options) *string { return &o.LogFile })},
		{"log-size", 0, "BYTES", "Its largest size; default 1048576", applyLogSize},
		{"runas", 0, "USER", "Run as UID, UID:GID, LOGIN or LOGIN:GROUP; default for root: nobody", text(func(o *Options) *string { return &o.RunAs })},
		{"conf-path", 'c', "PATH", "", refuse("there is no socket for pesto(1)")},
		{"help", 'h', "", "Show this help", func(o *Options, _ getopt.Match) error { o.Help = true; return errStop }},
		{"version", 0, "", "Show the version", func(o *Options, _ getopt.Match) error { o.Version = true; return errStop }},

		{"ns-ifname", 'I', "NAME", "Name of the device inside; default: that of the host's link", applyName},
		{"pcap", 'p', "FILE", "Write the device's packets to a file (IP packets: the device has no Ethernet)", text(func(o *Options) *string { return &o.Pcap })},
		{"pid", 'P', "FILE", "Write our process id to a file once the network works", text(func(o *Options) *string { return &o.PIDFile })},
		{"mtu", 'm', "MTU", "The device's MTU; 0 leaves it at the kernel's; default 65520", applyMTU},
		{"address", 'a', "ADDR[/LEN]", "The namespace's IPv4 or IPv6 address; default: the host's", applyAddress},
		{"netmask", 'n', "MASK", "Its IPv4 netmask, dotted or bits; default: the host's", applyNetmask},
		{"mac-addr", 'M', "ADDR", "", refuse("the device is a TUN, which has no MAC addresses")},
		{"gateway", 'g', "ADDR", "The IPv4 or IPv6 default gateway; default: the host's", applyGateway},
		{"interface", 'i', "NAME", "Take addresses from this link of the host; default: that of the default route", text(func(o *Options) *string { return &o.Template })},
		{"outbound", 'o', "ADDR", "Source address of the host's sockets; default: the host's routes decide", applyOutbound},
		{"outbound-if4", 0, "NAME", "Bind IPv4 sockets to this link", text(func(o *Options) *string { return &o.OutLink4 })},
		{"outbound-if6", 0, "NAME", "Bind IPv6 sockets to this link", text(func(o *Options) *string { return &o.OutLink6 })},
		{"dns", 'D', "ADDR", "Accepted; it is for DHCP. 'none' takes back --dns-forward and --dns-host", applyDNS},
		{"search", 'S', "LIST", "Accepted; it is for DHCP", meaningless}, // pasta passes it on only with --dhcp-search
		{"hostname", 'H', "NAME", "", refuse(noDHCP)},
		{"fqdn", 0, "NAME", "", refuse(noDHCP)},
		{"dhcp-dns", 0, "", "", refuse(noDHCP)},
		{"no-dhcp-dns", 0, "", "", passtOnly},
		{"dhcp-search", 0, "", "", refuse(noDHCP)},
		{"no-dhcp-search", 0, "", "", passtOnly},
		{"map-host-loopback", 0, "ADDR", "An address that leads to the host's loopback, or none; default: the gateway", applyMapLoopback},
		{"map-guest-addr", 0, "ADDR", "An address that leads to the host's own, which the namespace has a copy of", applyMapGuest},
		{"dns-forward", 0, "ADDR", "An address whose port 53 leads to the host's resolver", pair(func(o *Options) *[]netip.Addr { return &o.DNSForward }, plain)},
		{"dns-host", 0, "ADDR", "The host's resolver; default: the first of /etc/resolv.conf that answers", pair(func(o *Options) *[]netip.Addr { return &o.DNSHost }, specified)},
		{"no-tcp", 0, "", "Drop all TCP", set(func(o *Options) *bool { return &o.NoTCP })},
		{"no-udp", 0, "", "Drop all UDP", set(func(o *Options) *bool { return &o.NoUDP })},
		{"no-icmp", 0, "", "Drop all pings", set(func(o *Options) *bool { return &o.NoICMP })},
		{"no-dhcp", 0, "", "Accepted: there is no DHCP server here", meaningless},
		{"no-ndp", 0, "", "Accepted: a TUN needs no neighbour discovery", meaningless},
		{"no-dhcpv6", 0, "", "Accepted: there is no DHCPv6 server here", meaningless},
		{"no-ra", 0, "", "Accepted: there are no router advertisements here", meaningless},
		{"freebind", 0, "", "", refuse("listening addresses have to be the host's")},
		{"map-gw", 0, "", "The gateway's address leads to the host's loopback, as by default", func(o *Options, _ getopt.Match) error { o.NoMapGateway = false; return nil }},
		{"no-map-gw", 0, "", "It doesn't", set(func(o *Options) *bool { return &o.NoMapGateway })},
		{"chroot-fallback", 0, "", "Accepted: no root is changed here, so nothing can fall back", meaningless},
		{"ipv4-only", '4', "", "No IPv6", func(o *Options, _ getopt.Match) error { o.OnlyIPv4, o.OnlyIPv6 = true, false; return nil }},
		{"ipv6-only", '6', "", "No IPv4", func(o *Options, _ getopt.Match) error { o.OnlyIPv4, o.OnlyIPv6 = false, true; return nil }},

		{"tcp-ports", 't', "SPEC", "Forward TCP ports of the host inward; default: auto", list(func(o *Options) *[]string { return &o.TCP })},
		{"udp-ports", 'u', "SPEC", "The same for UDP", list(func(o *Options) *[]string { return &o.UDP })},
		{"tcp-ns", 'T', "SPEC", "Forward TCP ports of the namespace's loopback to the host's; default: auto", list(func(o *Options) *[]string { return &o.TCPOut })},
		{"udp-ns", 'U', "SPEC", "The same for UDP", list(func(o *Options) *[]string { return &o.UDPOut })},
		{"host-lo-to-ns-lo", 0, "", "", refuse("connections to the host's loopback arrive at the namespace's own address")},

		{"userns", 0, "PATH", "User namespace to join", func(o *Options, m getopt.Match) error { o.UserNS, o.NetNSOnly = m.Value, false; return nil }},
		{"netns", 0, "PATH|NAME", "Network namespace to join", applyNetNS},
		{"netns-only", 0, "", "Join no user namespace", func(o *Options, _ getopt.Match) error { o.UserNS, o.NetNSOnly = "", true; return nil }},
		{"no-netns-quit", 0, "", "Stay when the namespace's path vanishes", set(func(o *Options) *bool { return &o.NoNetNSQuit })},
		{"no-pidns", 0, "", "Accepted: the command keeps our PID namespace", set(func(o *Options) *bool { return &o.NoPIDNS })},
		{"config-net", 0, "", "Set up addresses and routes in the namespace", set(func(o *Options) *bool { return &o.Configure })},
		{"no-copy-routes", 0, "", "Accepted: all leads to the device anyhow, by a default route", applyNoCopy},
		{"no-copy-addrs", 0, "", "Accepted: one address of each family is set", applyNoCopy},
		{"ns-mac-addr", 0, "ADDR", "", refuse("the device is a TUN, which has no MAC address")},
		{"no-splice", 0, "", "Accepted: local connections take the same path as others", meaningless},
		{"splice-only", 0, "", "", refuse("there is always a device; -T and -U forward loopback ports")},

		{"socket", 's', "PATH", "", passtOnly},
		{"socket-path", 0, "PATH", "", passtOnly},
		{"fd", 'F', "FD", "", refuse("the device is made in the namespace")},
		{"one-off", '1', "", "", passtOnly},
		{"vhost-user", 0, "", "", passtOnly},
		{"print-capabilities", 0, "", "", passtOnly},
		{"repair-path", 0, "PATH", "", passtOnly},
		{"migrate-exit", 0, "", "", passtOnly},
		{"migrate-no-linger", 0, "", "", passtOnly},
	}
}

func applyDebug(o *Options, _ getopt.Match) error {
	o.Debug, o.Quiet = true, false
	return nil
}

func applyTrace(o *Options, _ getopt.Match) error {
	o.Trace, o.Debug, o.Quiet = true, true, false
	o.Notices = append(o.Notices, "--trace shows no single packets here: use --pcap FILE")
	return nil
}

func applyQuiet(o *Options, _ getopt.Match) error {
	o.Quiet, o.Debug, o.Trace = true, false, false
	return nil
}

// smallestLog is the least that --log-size may be, in bytes: room for about a
// hundred lines after half of them made way.
const smallestLog = 16 << 10

func applyLogSize(o *Options, m getopt.Match) error {
	n, err := strconv.ParseInt(m.Value, 0, 64)
	if err != nil || n < smallestLog {
		return fmt.Errorf("want a number of bytes, at least %d", smallestLog)
	}
	o.LogBytes = n
	return nil
}

func applyName(o *Options, m getopt.Match) error {
	if m.Value == "" || len(m.Value) > 15 {
		return errors.New("a link's name has 1 to 15 bytes")
	}
	o.Interface = m.Value
	return nil
}

func applyMTU(o *Options, m getopt.Match) error {
	n, err := strconv.ParseUint(m.Value, 0, 32)
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

func applyAddress(o *Options, m getopt.Match) error {
	p, err := netip.ParsePrefix(m.Value)
	if err == nil && p.Addr().Is4() && o.Netmask > 0 {
		return errors.New("the prefix length is given twice")
	}
	if err != nil {
		a, err := netip.ParseAddr(m.Value)
		if err != nil {
			return errors.New("is no address")
		}
		p = netip.PrefixFrom(a, classBits(a))
		if a.Is4() && o.Netmask != 0 {
			p = netip.PrefixFrom(a, o.Netmask)
		}
	} else if p.Addr().Is4() {
		o.Netmask = -1 // given here: --netmask would be a second time
	}
	if !plain(p.Addr()) {
		return errors.New("is no address that a namespace can have")
	}
	if p.Addr().Is4() {
		o.Addr4 = p
	} else {
		o.Addr6 = netip.PrefixFrom(p.Addr(), 64)
	}
	return nil
}

// classBits is the length of an address' network where nobody says it: that of
// its class, or 64.
func classBits(a netip.Addr) int {
	if !a.Is4() {
		return 64
	}
	if n, _ := net.IP(a.AsSlice()).DefaultMask().Size(); n != 0 {
		return n
	}
	return 32 // class D and E have no networks
}

func applyNetmask(o *Options, m getopt.Match) error {
	if o.Netmask == -1 {
		return errors.New("the prefix length is given twice")
	}
	bits, err := strconv.Atoi(m.Value)
	if a, dotted := netip.ParseAddr(m.Value); dotted == nil && a.Is4() {
		var size int
		if bits, size = net.IPMask(a.AsSlice()).Size(); size == 0 {
			return errors.New("is no netmask")
		}
		err = nil
	}
	if err != nil || bits < 1 || bits > 32 {
		return errors.New("is no netmask")
	}
	o.Netmask = bits
	if o.Addr4.IsValid() {
		o.Addr4 = netip.PrefixFrom(o.Addr4.Addr(), bits)
	}
	return nil
}

func applyGateway(o *Options, m getopt.Match) error {
	a, err := netip.ParseAddr(m.Value)
	if err != nil || !plain(a) {
		return errors.New("is no address that a gateway can have")
	}
	if a.Is4() {
		o.Gateway4 = a
	} else {
		o.Gateway6 = a
	}
	return nil
}

func applyOutbound(o *Options, m getopt.Match) error {
	a, err := netip.ParseAddr(m.Value)
	if err != nil || !plain(a) {
		return errors.New("is no address to send from")
	}
	if a.Is4() {
		o.Outbound4 = a
	} else {
		o.Outbound6 = a
	}
	return nil
}

func applyDNS(o *Options, m getopt.Match) error {
	if m.Value == "none" {
		o.DNSForward, o.DNSHost = nil, nil
		return nil
	}
	if _, err := netip.ParseAddr(m.Value); err != nil {
		return errors.New("is no address")
	}
	return nil
}

func applyMapLoopback(o *Options, m getopt.Match) error {
	if m.Value == "none" {
		o.MapLoopback, o.NoMapGateway = nil, true
		return nil
	}
	return pair(func(o *Options) *[]netip.Addr { return &o.MapLoopback }, plain)(o, m)
}

func applyMapGuest(o *Options, m getopt.Match) error {
	if m.Value == "none" {
		o.MapGuest = nil
		return nil
	}
	return pair(func(o *Options) *[]netip.Addr { return &o.MapGuest }, plain)(o, m)
}

func applyNetNS(o *Options, m getopt.Match) error {
	if m.Value == "" {
		return errors.New("is empty")
	}
	o.NetNS = m.Value
	if filepath.Base(m.Value) == m.Value {
		o.NetNS = filepath.Join("/run/netns", m.Value)
	}
	return nil
}

func applyNoCopy(o *Options, m getopt.Match) error {
	o.Notices = append(o.Notices, m.As+" has no effect: it is so anyhow")
	return nil
}
