package named

import (
	"cmp"
	"context"
	"path/filepath"

	"cleat/lab"
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
		_, err := c.net(ctx, args...)
		return &c, err
	}
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
