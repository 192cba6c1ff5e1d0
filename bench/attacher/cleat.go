package attacher

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"cleat/bench/named"
	"cleat/lab"

	"golang.org/x/sys/unix"
)

// cleat attaches by `cleat attach`.
type cleat struct {
	bareEndpoints
	host          *Host
	program, link string
	env           []string
	keeper        *exec.Cmd // nil: none runs
}

func openCleat(_ context.Context, h *Host) (driver, error) { return newCleat(h), nil }

func newCleat(h *Host) *cleat {
	return &cleat{
		host: h, program: cmp.Or(h.cfg.Program, lab.Self), link: h.cfg.Link,
		env: []string{"CLEAT_STATE_DIR=" + filepath.Join(h.dir, "state")},
	}
}

const keeperTimeout = 10 * time.Second

// openKeeper is openCleat with a running keeper.
func openKeeper(ctx context.Context, h *Host) (driver, error) {
	c := newCleat(h)
	c.keeper = exec.Command(c.program, "keep")
	c.keeper.Env = h.environment(c.env)
	stderr := &bytes.Buffer{}
	c.keeper.Stderr = stderr
	if err := h.node.NS.Start(c.keeper); err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	socket := filepath.Join(h.dir, "state", "keeper.socket")
	for deadline := time.Now().Add(keeperTimeout); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			return c, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			c.keeper.Process.Kill()
			c.keeper.Wait()
			return nil, errors.Join(ctx.Err(), fmt.Errorf("the keeper has no socket after %s: %s", keeperTimeout, strings.TrimSpace(stderr.String())))
		}
	}
}

func (c *cleat) attach(ctx context.Context, e endpoint) (named.Usage, error) {
	args := []string{c.program, "attach", e.ns.Path()}
	if c.link == "bridge" {
		args = append(args, "bridge", "br0", "--masquerade")
	} else {
		args = append(args, "macvlan", parent, "--gw", gateway.String())
	}
	return c.host.run(ctx, command{args: append(args, "--ip", address(e.serial).String(), "--name", inside), env: c.env})
}

func (c *cleat) detach(ctx context.Context, e endpoint) (named.Usage, error) {
	return c.host.run(ctx, command{args: []string{c.program, "detach", e.ns.Path(), inside}, env: c.env})
}

func (c *cleat) removed() error { return nil }

// close ends the keeper. Its exit code after SIGTERM is no error.
func (c *cleat) close() error {
	if c.keeper == nil {
		return nil
	}
	err := c.keeper.Process.Signal(unix.SIGTERM)
	waitErr := c.keeper.Wait()
	if c.keeper.ProcessState.ExitCode() == 128+int(unix.SIGTERM) {
		waitErr = nil
	}
	return errors.Join(err, waitErr)
}
