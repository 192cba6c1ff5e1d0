package netavark

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"cleat/network/named"
)

// driverCleat is the name of cleat's own plug-in.
const driverCleat = "cleat"

// NeedsPlugin reports whether a call has another program do something: it is then run in the process that
// was started for it.
func NeedsPlugin(stdin []byte) bool {
	var in struct {
		Network network            `json:"network"`
		Info    map[string]network `json:"network_info"`
	}
	_ = json.Unmarshal(stdin, &in) // Run reports an error
	for _, n := range in.Info {
		if !isOurs(n.Driver) {
			return true
		}
	}
	return in.Network.Driver != "" && !isOurs(in.Network.Driver)
}

func isOurs(driver string) bool {
	return driver == driverBridge || driver == driverMacvlan || driver == driverIPvlan || driver == driverCleat
}

// pluginFor returns the path of the plug-in for a driver; "" if cleat has the driver itself.
func (c *call) pluginFor(driver string) (string, error) {
	if isOurs(driver) {
		return "", nil
	}
	if len(c.line.Plugins) == 0 {
		return "", failure("unknown network driver \"%s\"", driver)
	}
	for _, dir := range c.line.Plugins {
		path := filepath.Join(dir, driver)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", failure("unknown network driver \"%s\": plugin not found in plugin directories", driver)
}

// runPlugin runs a plug-in and returns its output.
func (c *call) runPlugin(ctx context.Context, path string, input any, words ...string) ([]byte, error) {
	text, err := json.Marshal(input)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, words...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), c.errors()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		var said struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(out, &said) != nil {
			said.Error = string(bytes.TrimSpace(out))
		}
		return nil, failure("plugin %q failed: exit code %d, message: %s", filepath.Base(path), exit.ExitCode(), said.Error)
	}
	if err != nil {
		return nil, failure("plugin %q failed: %v", filepath.Base(path), err)
	}
	return out, nil
}

func (j *join) request(o *options) pluginRequest {
	return pluginRequest{ContainerID: o.ContainerID, ContainerName: o.ContainerName, Ports: o.Ports, Network: *j.network, Connection: j.option}
}

// setUpByPlugin has a plug-in connect the container, and returns what it says.
func (c *call) setUpByPlugin(ctx context.Context, o *options, j *join) (any, error) {
	out, err := c.runPlugin(ctx, j.plugin, j.request(o), "setup", c.line.Operand)
	if err != nil {
		return nil, err
	}
	if !json.Valid(out) {
		return nil, failure("plugin %q failed: JSON Decoding error: its output is not JSON", filepath.Base(j.plugin))
	}
	return json.RawMessage(out), nil
}

func (c *call) tearDownByPlugin(ctx context.Context, o *options, j *join) error {
	_, err := c.runPlugin(ctx, j.plugin, j.request(o), "teardown", c.line.Operand)
	return err
}

// completeByPlugin has a plug-in complete a new network.
func (c *call) completeByPlugin(n *network) error {
	if n.Driver == driverCleat {
		return c.completeOwn(n)
	}
	path, err := c.pluginFor(n.Driver)
	if err != nil {
		return failure("plugin for driver \"%s\" not found in plugin directories", n.Driver)
	}
	out, err := c.runPlugin(context.Background(), path, n, "create")
	if err != nil {
		return err
	}
	var got network
	if err := json.Unmarshal(out, &got); err != nil {
		return failure("JSON Decoding error: %v", err)
	}
	for _, same := range []struct{ what, a, b string }{{"name", n.Name, got.Name}, {"ID", n.ID, got.ID}, {"driver", n.Driver, got.Driver}} {
		if same.a != same.b {
			return failure("%s plugin invalid result: changed network %s", n.Driver, same.what)
		}
	}
	*n = got
	return nil
}

// beAPlugin runs a call of netavark, or Podman, as its plug-in.
func (c *call) beAPlugin(ctx context.Context) error {
	switch c.line.Command {
	case "info":
		return c.print(map[string]string{"version": c.Version, "api_version": "1.0.0"})
	case "create":
		var n network
		if err := json.Unmarshal(c.Stdin, &n); err != nil {
			return loadError("network create", err)
		}
		if err := c.completeOwn(&n); err != nil {
			return err
		}
		return c.print(n)
	case "setup", "teardown":
		return c.connectAsPlugin(ctx)
	}
	return failure("unknown subcommand %s", c.line.Command)
}

// connectAsPlugin runs setup or teardown for one network.
func (c *call) connectAsPlugin(ctx context.Context) error {
	var r pluginRequest
	if err := json.Unmarshal(c.Stdin, &r); err != nil {
		return loadError("network options", err)
	}
	r.Connection.Name = r.Network.Name
	r.Network.Driver = driverCleat
	o := options{ContainerID: r.ContainerID, ContainerName: r.ContainerName, Ports: r.Ports,
		Networks: connections{r.Connection}, Info: map[string]network{r.Network.Name: r.Network}}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	one := *c
	one.Stdin = text
	if c.line.Command == "teardown" {
		return one.teardown(ctx)
	}
	var out bytes.Buffer
	one.Out = &out
	if err := one.setup(ctx); err != nil {
		return err
	}
	var byName map[string]json.RawMessage
	if err := json.Unmarshal(out.Bytes(), &byName); err != nil {
		return fmt.Errorf("read the result: %w", err)
	}
	return c.print(byName[r.Network.Name])
}

// completeOwn completes a network of driver cleat: it has the subnets of cleat's network of its name, or
// those that were given, or free ones. Cleat gives its addresses, because others may be on the network.
func (c *call) completeOwn(n *network) error {
	n.setIPAM(ipamCleat)
	store := named.Store{Store: c.Networks.Attach.Store}
	have, err := store.Network(n.names()[0])
	var subnets []named.Subnet
	switch {
	case err == nil && have.Manager == "":
		subnets = have.Subnets
	case len(n.Subnets) > 0:
		return n.completeSubnets(true, false, nil)
	default:
		if subnets, err = named.FreeSubnets(c.Networks, n.IPv6); err != nil {
			return err
		}
	}
	n.Subnets = nil
	for _, s := range subnets {
		n.Subnets = append(n.Subnets, subnet{Subnet: prefix{s.Prefix}, Gateway: &addr{s.Gateway}})
		n.IPv6 = n.IPv6 || s.Prefix.Addr().Is6()
	}
	return nil
}
