package attacher

import (
	"cmp"
	"context"
	"path/filepath"

	"cleat/lab"
)

// cleat is our own program.
type cleat struct {
	program, link string
	env           []string
}

func openCleat(_ context.Context, s *Site) (tool, error) {
	return &cleat{
		program: cmp.Or(s.cfg.Program, lab.Self), link: s.cfg.Link,
		env: []string{"CLEAT_STATE_DIR=" + filepath.Join(s.dir, "state")},
	}, nil
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
func (c *cleat) close() error    { return nil }
