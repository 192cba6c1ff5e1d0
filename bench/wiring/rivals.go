package wiring

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/lab"
	"cleat/link"

	"github.com/vishvananda/netlink"
)

// best tells whether a rival is given what it can't find out by itself, instead
// of its defaults.
func (s *site) best() bool { return s.Factors[settingsFactor] == "best" }

// mpt runs MPT's server on both hosts, which reads conf/ in its directory and
// gives the device its address.
func mpt(s *site, w *Wired) error {
	p, err := s.parallel(w)
	if err != nil {
		return err
	}
	for side, n := range p.sides() {
		dir := filepath.Join(s.dir, fmt.Sprintf("mpt%d", side))
		for name, text := range map[string]string{
			"conf/interface.conf":         mptInterface(side),
			"conf/connections/bench.conf": mptConnection(p, side, s.best()),
		} {
			if err := writeFile(filepath.Join(dir, name), text, 0o600); err != nil {
				return err
			}
		}
		if err := s.start(n, lab.Command{Args: []string{"sh", "-c", `cd "$1" && exec mptsrv`, "sh", dir}}); err != nil {
			return err
		}
	}
	return s.throughTunnel(w, p, nil)
}

func writeFile(path, text string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return fmt.Errorf("write a configuration: %w", err)
	}
	return nil
}

// Ports of MPT: its sample configuration's.
const (
	mptPort    = 23456
	mptCommand = 60456
)

// mptInterface is MPT's interface.conf: 1464 bytes are what its manual has for
// paths of IPv4.
func mptInterface(side int) string {
	return fmt.Sprintf("[general]\ntunnel_num = 1\naccept_remote = 1\ncmdport_local = %d\ncmd_timeout = 25\n\n[tun_0]\nname = %s\nmtu = 1464\nipv4_addr = %s\n",
		mptCommand, innerDevice, innerAddrs[side])
}

// mptConnection is one of MPT's connections. Its defaults weigh all paths alike;
// the best settings weigh them by their rates, and leave a dead path as soon as
// whole seconds allow.
func mptConnection(p parallel, side int, best bool) string {
	keepalive, dead, weight := 5, 11, weights(p)
	if best {
		keepalive, dead = 1, 2
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[connection]\nname = bench\npermission = 3\nip_ver = 4\nip_local = %s\nlocal_port = %d\nip_remote = %s\nremote_port = %d\nremote_cmd_port = %d\n",
		innerAddrs[side].Addr(), mptPort, innerAddrs[3-side].Addr(), mptPort, mptCommand)
	fmt.Fprintf(&b, "path_count = %d\nnetwork_count = 0\nstatus = 0\nreorder_window = 900\nmax_buffdelay_msec = 300\nauth_type = 0\n", p.spec.Links)
	for i := range p.spec.Links {
		out := 10
		if best {
			out *= weight[i]
		}
		fmt.Fprintf(&b, "\n[path_%d]\ninterface_name = %s\nip_ver = %s\npublic_ipaddr = %s\ngw_ipaddr = %s\nremote_ipaddr = %s\nkeepalive_time = %d\ndead_time = %d\nweight_out = %d\nstatus = 0\n",
			i, linkName(i), p.version(), p.linkAddr(i, side), p.linkAddr(i, 3-side), p.linkAddr(i, 3-side), keepalive, dead, out)
		if i == 0 {
			b.WriteString("cmd_default = 1\n")
		}
	}
	return b.String()
}

// version is the links' version of IP.
func (p parallel) version() string {
	if p.ipv6 {
		return "6"
	}
	return "4"
}

// mlvpn runs MLVPN: right listens, left connects.
func mlvpn(s *site, w *Wired) error {
	p, err := s.parallel(w)
	if err != nil {
		return err
	}
	for side, n := range p.sides() {
		status := filepath.Join(s.dir, fmt.Sprintf("mlvpn%d.sh", side))
		if err := writeFile(status, "#!/bin/sh\nexit 0\n", 0o700); err != nil {
			return err
		}
		file := filepath.Join(s.dir, fmt.Sprintf("mlvpn%d.conf", side))
		if err := writeFile(file, mlvpnFile(p, side, status, s.best()), 0o600); err != nil {
			return err
		}
		if err := s.start(n, lab.Command{Args: []string{"mlvpn", "--debug", "--yes-run-as-root", "--user", "root", "--config", file}}); err != nil {
			return err
		}
		if err := s.awaitDevice(n, side); err != nil {
			return err
		}
	}
	return s.throughTunnel(w, p, nil)
}

// mlvpnPort is that of the first link's.
const mlvpnPort = 5080

// mlvpnFile is mlvpn.conf. The defaults are its manual's; the best settings tell
// it the rates, a buffer to put packets in order, and to notice death as soon as
// whole seconds allow, and leave data in the clear.
func mlvpnFile(p parallel, side int, status string, best bool) string {
	mode := map[int]string{1: "client", 2: "server"}[side]
	var b strings.Builder
	fmt.Fprintf(&b, "[general]\nstatuscommand = %q\nmode = %q\ninterface_name = %q\ntuntap = \"tun\"\npassword = \"bench\"\n", status, mode, innerDevice)
	if best {
		fmt.Fprintf(&b, "timeout = 2\ncleartext_data = 1\nreorder_buffer_size = %d\n", 64*p.spec.Links)
	} else {
		b.WriteString("timeout = 30\n")
	}
	for i, l := range p.spec.Plan() {
		fmt.Fprintf(&b, "\n[%s]\nbindhost = %q\nbindport = %d\n", linkName(i), p.linkAddr(i, side), mlvpnPort+i)
		if side == 1 {
			fmt.Fprintf(&b, "remotehost = %q\nremoteport = %d\n", p.linkAddr(i, 2), mlvpnPort+i)
		}
		if best {
			fmt.Fprintf(&b, "bandwidth_upload = %s\n", bytesPerSecond(l.RateBitsPerSec))
		}
	}
	return b.String()
}

// glorytun runs glorytun: right is bound to everything, left has a path from
// each link's address to one address of right, which rules lead over that link.
func glorytun(s *site, w *Wired) error {
	p, err := s.parallel(w)
	if err != nil {
		return err
	}
	if err := p.anchorAddress(); err != nil {
		return err
	}
	key := filepath.Join(s.dir, "glorytun.key")
	// AES-256 or ChaCha20: 32 bytes, in base64 as `glorytun keygen` prints them.
	if err := writeFile(key, base64.StdEncoding.EncodeToString([]byte(strings.Repeat("bench-k.", 4)))+"\n", 0o600); err != nil {
		return err
	}
	for side, args := range map[int][]string{
		2: {"glorytun", "bind", "0.0.0.0", "dev", innerDevice, "keyfile", key},
		1: {"glorytun", "bind", "0.0.0.0", "to", anchor.String(), "dev", innerDevice, "keyfile", key},
	} {
		if err := s.start(p.sides()[side], lab.Command{Args: args}); err != nil {
			return err
		}
		if err := s.awaitDevice(p.sides()[side], side); err != nil {
			return err
		}
	}
	for _, args := range glorytunPaths(p, s.best()) {
		if err := s.start(p.left, lab.Command{Args: args}); err != nil {
			return err
		}
	}
	return s.throughTunnel(w, p, nil)
}

// glorytunPaths are the commands that give glorytun its paths; by default it
// looks for their rates itself, the best settings tell it.
func glorytunPaths(p parallel, best bool) [][]string {
	var commands [][]string
	for i, l := range p.spec.Plan() {
		args := []string{"glorytun", "path", p.linkAddr(i, 1).String(), "dev", innerDevice, "up"}
		if best {
			rate := bytesPerSecond(l.RateBitsPerSec)
			args = append(args, "rate", "fixed", "tx", rate, "rx", rate)
		}
		commands = append(commands, args)
	}
	return commands
}

// anchor is an address of the right host that every link leads to.
var anchor = netip.AddrFrom4([4]byte{198, 18, 251, 2})

// firstTable is the routing table of the first link's source address.
const firstTable = 100

// anchorAddress gives the right host the anchor, and the left one a route to it
// over each link for what comes from that link's address.
func (p parallel) anchorAddress() error {
	if err := p.right.Address("lo", netip.PrefixFrom(anchor, 32)); err != nil {
		return err
	}
	h, err := link.Handle(p.left.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	for i := range p.spec.Links {
		l, err := h.LinkByName(linkName(i))
		if err != nil {
			return fmt.Errorf("find link %s: %w", linkName(i), err)
		}
		to := &net.IPNet{IP: anchor.AsSlice(), Mask: net.CIDRMask(32, 32)}
		r := &netlink.Route{Dst: to, Gw: p.linkAddr(i, 2).AsSlice(), LinkIndex: l.Attrs().Index, Table: firstTable + i}
		if err := h.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s over %s: %w", anchor, linkName(i), err)
		}
		rule := netlink.NewRule()
		rule.Src = &net.IPNet{IP: p.linkAddr(i, 1).AsSlice(), Mask: net.CIDRMask(32, 32)}
		rule.Table = firstTable + i
		if err := h.RuleAdd(rule); err != nil {
			return fmt.Errorf("add a rule for %s: %w", strconv.Quote(p.linkAddr(i, 1).String()), err)
		}
	}
	return nil
}
