package spanned

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"cleat/bench/named"
	"cleat/internal/program"
)

// cleat runs cleat-node and `cleat net`.
type cleat struct {
	namespaces
	cfg         Config
	cleat, node string // paths
	first       *Host
	invitation  string // a token of less than an hour ago: making one is no part of a join
	invited     time.Time
}

// invitedFor is how long a token is used. It is valid for an hour.
const invitedFor = 50 * time.Minute

func openCleat(cfg Config) (driver, error) {
	c := &cleat{cfg: cfg, cleat: cfg.Program}
	var err error
	if c.node, err = findNode(cfg); err != nil {
		return nil, err
	}
	if c.cleat == "" { // cleat-node starts it by its name
		self, err := os.Executable()
		if err == nil {
			err = os.MkdirAll(c.bin(), 0o755)
		}
		c.cleat = filepath.Join(c.bin(), "cleat")
		if err == nil {
			err = os.Symlink(self, c.cleat)
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("link cleat for cleat-node: %w", err)
		}
	}
	return c, nil
}

func (c *cleat) bin() string { return filepath.Join(c.cfg.Dir, "bin") }

// run runs one of the two programs on a host.
func (c *cleat) run(ctx context.Context, h *Host, path string, args ...string) ([]byte, error) {
	u, err := c.measure(ctx, h, path, args...)
	return u.Output, err
}

// measure is run with what the program took.
func (c *cleat) measure(ctx context.Context, h *Host, path string, args ...string) (named.Usage, error) {
	env := []string{"CLEAT_STATE_DIR=" + filepath.Join(h.dir, "state"), "PATH=" + filepath.Dir(c.cleat) + ":" + program.SearchPath(), "HOME=" + h.dir}
	return named.Exec(ctx, h.Node, named.Command{Args: append([]string{path}, args...), Env: env})
}

func (c *cleat) join(ctx context.Context, h *Host) error {
	args := []string{"up", "--name", h.Name, "--address", h.Addr.String()}
	if c.first == nil {
		c.first = h
		if c.cfg.Dataplane != "" {
			args = append(args, "--dataplane", c.cfg.Dataplane)
		}
		if _, err := c.run(ctx, h, c.node, args...); err != nil {
			return err
		}
		args := []string{"net", "create", networkName, "--span", "--subnet", Subnet.String()}
		if c.cfg.Datapath != "" {
			args = append(args, "--datapath", c.cfg.Datapath)
		}
		if _, err := c.run(ctx, h, c.cleat, args...); err != nil {
			return err
		}
		return named.NeedDatapath(c.cfg.Datapath, func() ([]byte, error) { return c.run(ctx, h, c.cleat, "net", "inspect", networkName, "--json") })
	}
	token, err := c.token(ctx)
	if err != nil {
		return err
	}
	_, err = c.run(ctx, h, c.node, append(args, "--token", token)...)
	return err
}

// token returns an invitation to the cluster.
func (c *cleat) token(ctx context.Context) (string, error) {
	if c.invitation != "" && time.Since(c.invited) < invitedFor {
		return c.invitation, nil
	}
	out, err := c.run(ctx, c.first, c.node, "token", "--json")
	if err != nil {
		return "", err
	}
	var t struct {
		Text string `json:"token"`
	}
	if err := json.Unmarshal(out, &t); err != nil || t.Text == "" {
		return "", fmt.Errorf("read the token %.80q: %w", out, err)
	}
	c.invitation, c.invited = t.Text, time.Now()
	return t.Text, nil
}

func (c *cleat) connect(ctx context.Context, k *Container, a netip.Addr) (named.Usage, error) {
	args := []string{"net", "connect", networkName, k.path, "--json"}
	if a.IsValid() {
		args = append(args, "--ip", a.String())
	}
	u, err := c.measure(ctx, k.host, c.cleat, args...)
	if err != nil {
		return u, err
	}
	var got struct {
		Endpoint struct {
			Addresses []netip.Addr `json:"addresses"`
		} `json:"endpoint"`
	}
	if err := json.Unmarshal(u.Output, &got); err != nil || len(got.Endpoint.Addresses) == 0 {
		return u, fmt.Errorf("read the address of container %s in %.200q: %w", k.Name, u.Output, err)
	}
	k.Addr = got.Endpoint.Addresses[0]
	return u, nil
}

func (c *cleat) disconnect(ctx context.Context, k *Container) (named.Usage, error) {
	return c.measure(ctx, k.host, c.cleat, "net", "disconnect", networkName, k.path)
}

func (c *cleat) leave(ctx context.Context, h *Host) error {
	_, err := c.run(ctx, c.first, c.node, "remove", h.Name)
	return err
}

func (c *cleat) misses(ctx context.Context, h, other *Host) (bool, error) {
	out, err := c.run(ctx, h, c.node, "status", "--json")
	if err != nil {
		return false, err
	}
	var s struct {
		Hosts []struct {
			Name  string `json:"name"`
			Alive bool   `json:"alive"`
		} `json:"hosts"`
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return false, fmt.Errorf("read the status of host %s: %w", h.Name, err)
	}
	for _, one := range s.Hosts {
		if one.Name == other.Name {
			return !one.Alive, nil
		}
	}
	return true, nil
}

func (c *cleat) resolver(*Host) netip.AddrPort {
	return netip.AddrPortFrom(Subnet.Addr().Next(), 53)
}
