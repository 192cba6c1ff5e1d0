package spanned

import (
	"context"
	"os"
	"path/filepath"

	"cleat/lab"
	"cleat/netns"
)

// namespaces is the part of a driver whose containers are network namespaces with a path, and whose hosts need nothing
// before they join.
type namespaces struct{}

func (namespaces) prepare(context.Context, *Host) error { return nil }

func (namespaces) release(*Host) error { return nil }

func (namespaces) create(_ context.Context, c *Container, _ bool) (err error) {
	if c.Node, err = lab.NewNode(c.Name); err != nil {
		return err
	}
	path := filepath.Join(c.host.cluster.cfg.Dir, "netns", c.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := c.Node.NS.Pin(path); err != nil {
		return err
	}
	c.path = path
	return nil
}

func (namespaces) remove(c *Container) error {
	if c.path == "" {
		return nil
	}
	return netns.Unpin(c.path)
}
