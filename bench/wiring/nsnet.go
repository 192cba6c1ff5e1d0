package wiring

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"cleat/lab"
	"cleat/netns"
)

// nsnetMTU is compiled into nsnet, in bytes.
const nsnetMTU = 32 << 10

// nsnet runs nsnet's test program, which makes its own container around a shell
// and reads the shell's commands from standard input. Its root directory is
// /tmp/newroot: it gets a /tmp of its own.
func nsnet(nw *Network) error {
	return nw.userMode(helper{loopback: hostAddr(1), contain: containNsnet})
}

func containNsnet(nw *Network, r *rootless) error {
	commands, keep, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	nw.stops = append(nw.stops, keep.Close) // the shell lives until its input ends
	err = nw.start(r.host, lab.Command{Stdin: commands, Args: []string{
		"unshare", "--mount", "sh", "-c", "mount -t tmpfs nsnet /tmp && exec nsnet-test"}})
	commands.Close()
	if err != nil {
		return err
	}
	const says = "Container is at pid: "
	var pid int
	if err := poll(nw.ctx, func() error {
		line, ok := nw.saidLine(says)
		if !ok {
			return fmt.Errorf("nsnet's test program does not say where its container is")
		}
		_, rest, _ := strings.Cut(line, says)
		if i := strings.IndexFunc(rest, func(c rune) bool { return c < '0' || c > '9' }); i >= 0 {
			rest = rest[:i]
		}
		pid, err = strconv.Atoi(rest)
		return err
	}); err != nil {
		return err
	}
	ns, err := netns.OfPID(pid)
	if err != nil {
		return err
	}
	r.container = &lab.Node{NS: ns}
	nw.nodes = append(nw.nodes, r.container)
	return nil
}

// nsnetCan says what nsnet's test program can't do, by design.
func nsnetCan(cfg Config) string {
	switch {
	case cfg.Inbound:
		return "nsnet forwards no ports into its container"
	case cfg.MTU != 0 && cfg.MTU != nsnetMTU:
		return fmt.Sprintf("nsnet's MTU of %d bytes is compiled in", nsnetMTU)
	case cfg.Pairs > 1:
		return "nsnet's test program makes one container"
	}
	return ""
}
