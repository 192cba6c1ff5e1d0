package named

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"cleat/lab"
	"cleat/link"
)

// cleat runs `cleat net`.
type cleat struct {
	namespaces
	cfg     Config
	program string
	env     []string
}

func openCleat(kind string) func(context.Context, Config) (driver, error) {
	return func(ctx context.Context, cfg Config) (driver, error) {
		c := newCleat(cfg)
		args := []string{"create", networkName, "--driver", kind, "--subnet", Subnet.String()}
		if cfg.Datapath != "" {
			args = append(args, "--datapath", cfg.Datapath)
		}
		if _, err := c.net(ctx, args...); err != nil {
			return &c, err
		}
		return &c, NeedDatapath(cfg.Datapath, func() ([]byte, error) {
			u, err := c.net(ctx, "inspect", networkName, "--json")
			return u.Output, err
		})
	}
}

// NeedDatapath returns a *link.Lack if a network does not have the datapath that it was created with, where the kernel
// refuses it. inspect runs `cleat net inspect --json`.
func NeedDatapath(want string, inspect func() ([]byte, error)) error {
	if want == "" || want == "auto" {
		return nil
	}
	out, err := inspect()
	if err != nil {
		return err
	}
	var n struct {
		Used struct{ By, Why string } `json:"datapath_used"`
	}
	if err := json.Unmarshal(out, &n); err != nil {
		return fmt.Errorf("read what forwards packets in %.200q: %w", out, err)
	}
	if n.Used.By != want {
		return &link.Lack{What: "datapath " + want, Reason: n.Used.Why}
	}
	return nil
}

func newCleat(cfg Config) cleat {
	return cleat{
		namespaces: namespaces{filepath.Join(cfg.Dir, "netns")}, cfg: cfg, program: cmp.Or(cfg.Program, lab.Self),
		env: cfg.baseEnv(cfg.stateDir()),
	}
}

func (c *cleat) net(ctx context.Context, args ...string) (Usage, error) {
	return Exec(ctx, c.cfg.Host, Command{Args: append([]string{c.program, "net"}, args...), Env: c.env})
}

func (c *cleat) create(ctx context.Context, one *Container, connect bool) error {
	return connected(ctx, c, one, connect)
}

func (c *cleat) connect(ctx context.Context, one *Container) (Usage, error) {
	args := []string{"connect", networkName, one.path}
	for _, p := range publish(one.Ports) {
		args = append(args, "--publish", p)
	}
	return c.net(ctx, args...)
}

func (c *cleat) disconnect(ctx context.Context, one *Container) (Usage, error) {
	return c.net(ctx, "disconnect", networkName, one.path)
}

// close does nothing: Network.Close ends the keeper and the name server.
func (c *cleat) close() error { return nil }
