package wiring

import (
	"encoding/hex"
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

// glorytun runs glorytun, of the branch stable: right is bound to everything, left
// has a path from each link's address to one address of right, which rules lead over
// that link.
//
// It is told of paths through a socket in /run that is named after the device, which
// both sides have: each gets a /run of its own.
func glorytun(nw *Network) error {
	p, err := nw.parallel()
	if err != nil {
		return err
	}
	if p.spec.Links > glorytunLinks {
		return &NotApplicable{Why: fmt.Sprintf("glorytun has room for %d links", glorytunLinks)}
	}
	if err := p.anchorAddress(); err != nil {
		return err
	}
	key := filepath.Join(nw.dir, "glorytun.key")
	// 32 bytes, in hexadecimal as `glorytun keygen` prints them.
	if err := writeFile(key, hex.EncodeToString([]byte(strings.Repeat("bench-k.", 4)))+"\n", 0o600); err != nil {
		return err
	}
	before := len(nw.procs)
	var left lab.Proc
	for side, n := range p.sides() {
		args := []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs glorytun /run && exec "$@"`, "sh", "glorytun", "bind", "0.0.0.0"}
		if side == 1 {
			args = append(args, "to", anchor.String())
		}
		proc, err := nw.rival(n, side, append(args, "dev", innerDevice, "keyfile", key)...)
		if err != nil {
			return err
		}
		if side == 1 {
			left = proc
		}
	}
	programs := nw.procs[before:]
	for _, args := range glorytunPaths(p, nw.cfg.BestSettings) {
		if _, err := nw.askGlorytun(p, left, args); err != nil {
			return err
		}
	}
	err = nw.whileRunning(programs, func() error {
		said, err := nw.askGlorytun(p, left, []string{"glorytun", "path", "dev", innerDevice})
		if up := strings.Count(said, "path UP OK "); err == nil && up < p.spec.Links {
			return fmt.Errorf("%d of %d links are up", up, p.spec.Links)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for glorytun's links: %w", err)
	}
	return nw.throughTunnel(p, programs)
}

// glorytunLinks is MUD_PATH_MAX of its mud/mud.h.
const glorytunLinks = 32

// askGlorytun has a command speak to the left program as soon as that listens for such, and
// returns what it prints.
func (nw *Network) askGlorytun(p parallel, left lab.Proc, args []string) (said string, err error) {
	in := []string{"nsenter", "--mount", "--target", strconv.Itoa(left.PID())}
	file := filepath.Join(nw.dir, "glorytun.answer")
	err = nw.whileRunning([]lab.Proc{left}, func() error {
		answer, err := os.Create(file)
		if err != nil {
			return err
		}
		defer answer.Close()
		run, err := p.left.Start(lab.Command{Args: append(in, args...), Stdout: answer, Stderr: answer})
		if err != nil {
			return err
		}
		err = run.Wait()
		text, readErr := os.ReadFile(file)
		if said = string(text); err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(said))
		}
		return readErr
	})
	if err != nil {
		return "", fmt.Errorf("run %s: %w", strings.Join(args, " "), err)
	}
	return said, nil
}

// unknownRate is what glorytun is told by default of a link's rate, in bit/s: it sends
// nothing before it has heard of a limit, which it then looks for itself.
const unknownRate = 1e9

// glorytunShare is how much of a link's rate glorytun may use: it does not count the outer
// headers, of Ethernet (14 bytes), IPv4 and UDP.
const glorytunShare = (1500. - 20 - 8) / (1500 + 14)

// glorytunPaths are the commands that give glorytun its paths; by default it
// looks for their rates itself, the best settings tell it.
func glorytunPaths(p parallel, best bool) [][]string {
	var commands [][]string
	for i, l := range p.spec.Plan() {
		mode, rate := "auto", bytesPerSecond(unknownRate)
		if best {
			mode, rate = "fixed", bytesPerSecond(l.RateBitsPerSec*glorytunShare)
		}
		commands = append(commands, []string{"glorytun", "path", p.linkAddr(i, 1).String(), "dev", innerDevice, "up", "rate", mode, "tx", rate, "rx", rate})
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
