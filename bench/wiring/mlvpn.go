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
// Its two processes have a PID namespace of their own, since the one survives when the
// other is killed. The namespace's first process is a shell, since MLVPN takes a parent
// with process id 1 for one that has died.
func mlvpn(nw *Network) error {
	h, err := nw.linkHosts()
	if err != nil {
		return err
	}
	before := len(nw.programs)
	var statuses []string
	for side, n := range h.sides() {
		status := filepath.Join(nw.dir, fmt.Sprintf("mlvpn%d.sh", side))
		statuses = append(statuses, status)
		if err := writeFile(status, mlvpnStatus, 0o700); err != nil {
			return err
		}
		file := filepath.Join(nw.dir, fmt.Sprintf("mlvpn%d.conf", side))
		if err := writeFile(file, mlvpnFile(h, side, status, nw.cfg.BestSettings), 0o600); err != nil {
			return err
		}
		_, err := nw.startRival(n, side, "unshare", "--pid", "--fork", "--kill-child", "sh", "-c", `"$@"; exit $?`, "sh",
			"mlvpn", "--debug", "--yes-run-as-root", "--user", "root", "--config", file)
		if err != nil {
			return err
		}
	}
	programs := nw.programs[before:]
	if err := nw.pollRunning(programs, func() error { return mlvpnUp(statuses, h.spec.Links) }); err != nil {
		return fmt.Errorf("wait for mlvpn's links: %w", err)
	}
	return nw.addTunnelledPairs(h, programs)
}

// mlvpnStatus is the status command of mlvpn, which runs it with the device, the event
// and the link. It records the links that come up.
const mlvpnStatus = "#!/bin/sh\n[ \"$2\" != rtun_up ] || echo \"$3\" >>\"$0.up\"\n"

// mlvpnUp returns nil if every link is up on both sides.
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

// mlvpnPort is the UDP port of the first link; link i uses mlvpnPort+i.
const mlvpnPort = 5080

// mlvpnFile returns mlvpn.conf with the defaults of its manual. The best settings give it
// the links' rates and a reorder buffer, detect a dead link as fast as whole seconds
// permit, and don't encrypt data.
func mlvpnFile(h linkedHosts, side int, status string, best bool) string {
	mode := map[int]string{1: "client", 2: "server"}[side]
	var b strings.Builder
	fmt.Fprintf(&b, "[general]\nstatuscommand = %q\nmode = %q\ninterface_name = %q\ntuntap = \"tun\"\npassword = \"bench\"\n", status, mode, tunnelDevice)
	if best {
		fmt.Fprintf(&b, "timeout = 2\ncleartext_data = 1\nreorder_buffer_size = %d\n", 64*h.spec.Links)
	} else {
		b.WriteString("timeout = 30\n")
	}
	for i, l := range h.spec.Plan() {
		fmt.Fprintf(&b, "\n[%s]\nbindhost = %q\nbindport = %d\n", linkName(i), h.linkAddr(i, side), mlvpnPort+i)
		if side == 1 {
			fmt.Fprintf(&b, "remotehost = %q\nremoteport = %d\n", h.linkAddr(i, 2), mlvpnPort+i)
		}
		if best {
			fmt.Fprintf(&b, "bandwidth_upload = %s\n", bytesPerSecond(l.RateBitsPerSec))
		}
	}
	return b.String()
}
