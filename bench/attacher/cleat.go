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

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// cleat is our own program.
type cleat struct {
	program, link string
	env           []string
	keeper        *exec.Cmd // nil: none runs
}

func openCleat(_ context.Context, s *Host) (tool, error) {
	return &cleat{
		program: cmp.Or(s.cfg.Program, lab.Self), link: s.cfg.Link,
		env: []string{"CLEAT_STATE_DIR=" + filepath.Join(s.dir, "state")},
	}, nil
}

// keeperWithin is how long a keeper may take until it answers.
const keeperWithin = 10 * time.Second

// openKeeper is the same with a keeper that answers.
func openKeeper(ctx context.Context, s *Host) (tool, error) {
	t, err := openCleat(ctx, s)
	if err != nil {
		return nil, err
	}
	c := t.(*cleat)
	c.keeper = exec.Command(c.program, "keep")
	c.keeper.Env = s.environment(c.env)
	said := &bytes.Buffer{}
	c.keeper.Stderr = said
	if err := s.host.NS.Start(c.keeper); err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	socket := filepath.Join(s.dir, "state", "keeper.socket")
	for end := time.Now().Add(keeperWithin); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			return c, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			c.keeper.Process.Kill()
			c.keeper.Wait()
			return nil, errors.Join(ctx.Err(), fmt.Errorf("the keeper answers nobody: %s", strings.TrimSpace(said.String())))
		}
	}
}

func (c *cleat) guest(serial int) (guest, error) { return newGuest(serial) }

func (c *cleat) attach(g guest) command {
	args := []string{c.program, "attach", g.ns.Path()}
	if c.link == "bridge" {
		args = append(args, "bridge", "br0", "--masquerade")
	} else {
		args = append(args, "macvlan", parent, "--gw", gateway.String())
	}
	return command{args: append(args, "--ip", address(g.serial).String(), "--name", inside), env: c.env}
}

func (c *cleat) detach(g guest) command {
	return command{args: []string{c.program, "detach", g.ns.Path(), inside}, env: c.env}
}

func (c *cleat) detached() error { return nil }

func (c *cleat) close() error {
	if c.keeper == nil {
		return nil
	}
	err := c.keeper.Process.Signal(unix.SIGTERM)
	return errors.Join(err, stopped(c.keeper.Wait()))
}

// stopped is nil for a program that ended as SIGTERM has it.
func stopped(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 128+int(unix.SIGTERM) {
		return nil
	}
	return err
}
