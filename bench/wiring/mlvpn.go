package wiring

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mlvpn runs MLVPN: right listens, left connects.
//
// It consists of two processes, and the one it leaves behind when the other is killed
// lives on: both have a PID namespace of their own, whose first process is not theirs,
// since a parent of number 1 is to them one that has died.
func mlvpn(nw *Network) error {
	p, err := nw.parallel()
	if err != nil {
		return err
	}
	before := len(nw.procs)
	var statuses []string
	for side, n := range p.sides() {
		status := filepath.Join(nw.dir, fmt.Sprintf("mlvpn%d.sh", side))
		statuses = append(statuses, status)
		if err := writeFile(status, mlvpnStatus, 0o700); err != nil {
			return err
		}
		file := filepath.Join(nw.dir, fmt.Sprintf("mlvpn%d.conf", side))
		if err := writeFile(file, mlvpnFile(p, side, status, nw.cfg.BestSettings), 0o600); err != nil {
			return err
		}
		_, err := nw.rival(n, side, "unshare", "--pid", "--fork", "--kill-child", "sh", "-c", `"$@"; exit $?`, "sh",
			"mlvpn", "--debug", "--yes-run-as-root", "--user", "root", "--config", file)
		if err != nil {
			return err
		}
	}
	programs := nw.procs[before:]
	err = nw.whileRunning(programs, func() error { return mlvpnUp(statuses, p.spec.Links) })
	if err != nil {
		return fmt.Errorf("wait for mlvpn's links: %w", err)
	}
	return nw.throughTunnel(p, programs)
}

// mlvpnStatus is what mlvpn runs when something has changed, with the device, what has, and
// the link: it writes down links that are up.
const mlvpnStatus = "#!/bin/sh\n[ \"$2\" != rtun_up ] || echo \"$3\" >>\"$0.up\"\n"

// mlvpnUp is nil when every link is up on both sides.
func mlvpnUp(statuses []string, links int) error {
	for _, status := range statuses {
		text, err := os.ReadFile(status + ".up")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		up := map[string]bool{}
		for _, name := range strings.Fields(string(text)) {
			up[name] = true
		}
		if len(up) < links {
			return fmt.Errorf("%d of %d links are up", len(up), links)
		}
	}
	return nil
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
