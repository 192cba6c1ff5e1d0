package wiring

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"cleat/lab"
	"cleat/netns"
)

// nsnetMTU is compiled into nsnet, in bytes.
const nsnetMTU = 32 << 10

// nsnet runs nsnet's test program, which makes a container of its own around a shell
// that reads commands from standard input.
func nsnet(nw *Network) error {
	return nw.rootless(rootlessDriver{hostAddr: hostAddr(1), create: createNsnet})
}

func createNsnet(nw *Network, c *rootlessContainer) error {
	stdin, open, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	nw.cleanups = append(nw.cleanups, open.Close) // the shell lives until its input ends
	// Its root directory is /tmp/newroot, so it gets a /tmp of its own.
	err = nw.start(c.host, lab.Command{Stdin: stdin, Args: []string{
		"unshare", "--mount", "sh", "-c", "mount -t tmpfs nsnet /tmp && exec nsnet-test"}})
	stdin.Close()
	if err != nil {
		return err
	}
	const prefix = "Container is at pid: "
	var pid int
	if err := poll(nw.ctx, func() error {
		line, ok := nw.outputLine(prefix)
		if !ok {
			return errors.New("nsnet's test program prints no process id of its container")
		}
		_, digits, _ := strings.Cut(line, prefix)
		if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
			digits = digits[:i]
		}
		pid, err = strconv.Atoi(digits)
		return err
	}); err != nil {
		return err
	}
	ns, err := netns.OfPID(pid)
	if err != nil {
		return err
	}
	c.node = &lab.Node{NS: ns}
	nw.nodes = append(nw.nodes, c.node)
	return nil
}

// nsnetRulesOut says why nsnet's test program can't be used with a Config; "" if it can.
func nsnetRulesOut(cfg Config) string {
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
