package wiring

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/lab"
	"cleat/link"

	"github.com/vishvananda/netlink"
)

const (
	// glorytunLinks is MUD_PATH_MAX of its mud/mud.h.
	glorytunLinks = 32

	// defaultRate is what glorytun gets for a link's rate by default, in bit/s. It sends
	// nothing until it knows a limit, and then searches for the rate itself.
	defaultRate = 1e9

	// glorytunShare is how much of a link's rate glorytun may use: it does not count the
	// outer headers of Ethernet (14 bytes), IPv4 and UDP.
	glorytunShare = (1500. - 20 - 8) / (1500 + 14)
)

// glorytun runs glorytun of its branch stable. Right is bound to every address. Left has
// a path from each link's address to one address of right, which rules lead over that
// link.
//
// Paths are added through a socket in /run that is named after the device. Both sides
// have the same device name, so each gets a /run of its own.
func glorytun(nw *Network) error {
	h, err := nw.linkHosts()
	if err != nil {
		return err
	}
	if h.spec.Links > glorytunLinks {
		return &NotApplicable{Why: fmt.Sprintf("glorytun has room for %d links", glorytunLinks)}
	}
	if err := h.routeAnchor(); err != nil {
		return err
	}
	key := filepath.Join(nw.dir, "glorytun.key")
	// 32 bytes in hexadecimal, as `glorytun keygen` prints them.
	if err := writeFile(key, hex.EncodeToString([]byte(strings.Repeat("bench-k.", 4)))+"\n", 0o600); err != nil {
		return err
	}
	before := len(nw.programs)
	var left lab.Proc
	for side, n := range h.sides() {
		args := []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs glorytun /run && exec "$@"`, "sh", "glorytun", "bind", "0.0.0.0"}
		if side == 1 {
			args = append(args, "to", anchor.String())
		}
		p, err := nw.startRival(n, side, append(args, "dev", tunnelDevice, "keyfile", key)...)
		if err != nil {
			return err
		}
		if side == 1 {
			left = p
		}
	}
	programs := nw.programs[before:]
	for _, args := range glorytunPaths(h, nw.cfg.BestSettings) {
		if _, err := nw.glorytunCommand(h, left, args); err != nil {
			return err
		}
	}
	err = nw.pollRunning(programs, func() error {
		output, err := nw.glorytunCommand(h, left, []string{"glorytun", "path", "dev", tunnelDevice})
		if up := strings.Count(output, "path UP OK "); err == nil && up < h.spec.Links {
			return fmt.Errorf("%d of %d links are up", up, h.spec.Links)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for glorytun's links: %w", err)
	}
	return nw.addTunnelledPairs(h, programs)
}

// glorytunCommand runs a command that controls the left program, as soon as that
// listens, and returns the command's output.
func (nw *Network) glorytunCommand(h linkedHosts, left lab.Proc, args []string) (string, error) {
	file := filepath.Join(nw.dir, "glorytun.out")
	var text []byte
	err := nw.pollRunning([]lab.Proc{left}, func() error {
		output, err := os.Create(file)
		if err != nil {
			return err
		}
		defer output.Close()
		enter := []string{"nsenter", "--mount", "--target", strconv.Itoa(left.PID())}
		p, err := h.left.Start(lab.Command{Args: append(enter, args...), Stdout: output, Stderr: output})
		if err != nil {
			return err
		}
		err = p.Wait()
		var readErr error
		if text, readErr = os.ReadFile(file); err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
		}
		return readErr
	})
	if err != nil {
		return "", fmt.Errorf("run %s: %w", strings.Join(args, " "), err)
	}
	return string(text), nil
}

// glorytunPaths returns the commands that give glorytun its paths. By default it searches
// for their rates itself; the best settings give them.
func glorytunPaths(h linkedHosts, best bool) [][]string {
	var commands [][]string
	for i, l := range h.spec.Plan() {
		mode, rate := "auto", bytesPerSecond(defaultRate)
		if best {
			mode, rate = "fixed", bytesPerSecond(l.RateBitsPerSec*glorytunShare)
		}
		commands = append(commands, []string{"glorytun", "path", h.linkAddr(i, 1).String(), "dev", tunnelDevice, "up", "rate", mode, "tx", rate, "rx", rate})
	}
	return commands
}

// anchor is an address of the right host that is reached over every link.
var anchor = netip.AddrFrom4([4]byte{198, 18, 251, 2})

// firstTable is the routing table for the first link's source address; link i uses
// firstTable+i.
const firstTable = 100

// routeAnchor gives the right host the anchor, and the left one a route to it over each
// link, for packets from that link's address.
func (h linkedHosts) routeAnchor() error {
	to := netip.PrefixFrom(anchor, 32)
	if err := h.right.Address("lo", to); err != nil {
		return err
	}
	handle, err := link.Handle(h.left.NS)
	if err != nil {
		return err
	}
	defer handle.Close()
	for i := range h.spec.Links {
		l, err := link.Find(h.left.NS, linkName(i))
		if err != nil {
			return err
		}
		r := &netlink.Route{Dst: ipNet(to), Gw: h.linkAddr(i, 2).AsSlice(), LinkIndex: l.Index(), Table: firstTable + i}
		if err := handle.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s over %s: %w", anchor, linkName(i), err)
		}
		rule := netlink.NewRule()
		rule.Src = ipNet(netip.PrefixFrom(h.linkAddr(i, 1), 32))
		rule.Table = firstTable + i
		if err := handle.RuleAdd(rule); err != nil {
			return fmt.Errorf("add rule for %s: %w", h.linkAddr(i, 1), err)
		}
	}
	return nil
}
