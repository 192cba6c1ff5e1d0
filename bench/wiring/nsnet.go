package wiring

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"

	"cleat/lab"
	"cleat/netns"
)

// nsnetMTU is compiled into nsnet, in bytes.
const nsnetMTU = 32 << 10

var nsnetPID = regexp.MustCompile(`Container is at pid: (\d+)`)

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
	var pid int
	if err := poll(nw.ctx, func() error {
		output, _ := os.ReadFile(nw.outputFile())
		m := nsnetPID.FindSubmatch(output)
		if m == nil {
			return errors.New("nsnet's test program prints no process id of its container")
		}
		pid, err = strconv.Atoi(string(m[1]))
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
