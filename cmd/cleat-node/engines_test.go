package main_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestEngines has containers of Docker, Podman and CNI on one network that spans hosts, each on a host of its own:
//
//	a  d1  Docker
//	b  p1  Podman, whose netavark is cleat
//	c  c1  CNI; the network is created here
func TestEngines(t *testing.T) {
	if !needEngines(t, "dockerd", "docker", "podman", "conmon") {
		return
	}
	c := newCluster(t, 3, boxProgram)
	a, b, last := c.hosts[0], c.hosts[1], c.hosts[2]
	a.becomeEngineHost()
	b.becomeEngineHost()
	c.up()
	last.createSpan("web", "--subnet", "10.64.0.0/18")
	a.startDocker()
	a.must("docker", "network", "create", "-d", "cleat", "--ipam-driver", "cleat", "--ipam-opt", "cleat.network=web", "-o", "cleat.network=web", "--subnet", "10.64.0.0/18", "web")
	b.setUpPodman("web")

	d1, p1, c1 := a.dockerRun("d1", "--publish", "8080:7"), b.podmanRun("p1", "--publish", "8081:7"), last.cniRun("c1")
	all := []*engineContainer{d1, p1, c1}
	reach := func(t *testing.T) {
		t.Helper()
		for _, from := range all {
			for _, to := range all {
				if from != to {
					c.eventually("reach", func() error { return from.asks(to) })
				}
			}
		}
	}
	t.Run("each reaches each by name", reach)
	t.Run("Docker knows the address", func(t *testing.T) {
		if got := a.must("docker", "inspect", "--format", "{{.NetworkSettings.Networks.web.IPAddress}}", "d1"); got != d1.addr.String() {
			t.Errorf("Docker says %s, the network %s", got, d1.addr)
		}
	})
	t.Run("published ports", func(t *testing.T) {
		for port, h := range map[string]*host{"8080": a, "8081": b} {
			c.eventually("port "+port, func() error {
				got, err := last.run(t.Context(), "box", "ask", h.addr.String()+":"+port)
				if err == nil && got != last.addr.String() {
					err = fmt.Errorf("the container sees %q, want %s", got, last.addr)
				}
				return err
			})
		}
	})
	t.Run("a rule holds", func(t *testing.T) {
		b.cleat("net", "deny", "web/d1 to web/p1")
		c.eventually("the rule", func() error {
			if d1.asks(p1) == nil {
				return errors.New("the denied connection passes")
			}
			return nil
		})
		for _, allowed := range [][2]*engineContainer{{p1, d1}, {c1, p1}, {d1, c1}} {
			if err := allowed[0].asks(allowed[1]); err != nil {
				t.Error(err)
			}
		}
		last.cleat("net", "deny", "--remove", "web/d1 to web/p1")
		c.eventually("the rule is gone", func() error { return d1.asks(p1) })
	})
	t.Run("a port on all hosts", func(t *testing.T) {
		a.must("docker", "run", "--detach", "--name", "d6", "--network", "name=web,driver-opt=cleat.publish=everywhere", "--publish", "9000:7", "image", "/box", "serve", "7")
		b.cleat("net", "publish", "podman:p1", "everywhere:9001:7")
		for _, h := range c.hosts {
			for _, port := range []string{"9000", "9001"} {
				c.eventually("port "+port+" of "+h.name, func() error { _, err := last.run(t.Context(), "box", "ask", h.addr.String()+":"+port); return err })
			}
		}
		a.must("docker", "rm", "--force", "d6")
		c.forgotten("d6")
	})
	t.Run("an address of another host's block", func(t *testing.T) {
		free := c1.addr.Next()
		d2 := a.dockerRun("d2", "--ip", free.String())
		if d2.addr != free {
			t.Errorf("it has %s, want %s", d2.addr, free)
		}
		c.eventually("it is reached", func() error { return p1.asks(d2) })
		a.must("docker", "rm", "--force", "d2")
		c.forgotten("d2")
	})
	t.Run("an address that is taken", func(t *testing.T) {
		out, err := a.run(t.Context(), "docker", "run", "--detach", "--name", "d3", "--network", "web", "--ip", p1.addr.String(), "image", "/box", "serve", "7")
		if err == nil || !strings.Contains(err.Error(), "p1") {
			t.Errorf("%s, %v; want an error that names p1", out, err)
		}
		a.must("docker", "rm", "--force", "d3")
	})
	t.Run("containers restart", func(t *testing.T) {
		a.must("docker", "restart", "--time", "0", "d1")
		b.must(append(append([]string{}, podman...), "restart", "--time", "0", "p1")...)
		a.known(d1)
		b.known(p1)
		reach(t)
	})
	t.Run("cleat-node is killed, and containers come and go meanwhile", func(t *testing.T) {
		for _, h := range []*host{a, b} {
			h.must("kill", "-9", fmt.Sprint(h.pid()))
		}
		a.must("docker", "rm", "--force", "d1")
		b.must(append(append([]string{}, podman...), "rm", "--force", "--time", "0", "p1")...)
		a.must("docker", "run", "--detach", "--name", "d4", "--network", "web", "image", "/box", "serve", "7")
		a.node("up")
		b.node("up")
		c.forgotten("d1")
		c.forgotten("p1")
		a.known(&engineContainer{name: "d4"})
		a.must("docker", "rm", "--force", "d4")
		must(t, last.cni("DEL", &container{name: "c1", path: last.c.dir + "/containers/c1"}, "web"))
		c.forgotten("d4")
		c.forgotten("c1")
	})
	t.Run("Docker is killed and started again", func(t *testing.T) {
		d5 := a.dockerRun("d5", "--restart", "always")
		a.must("pkill", "-9", "dockerd")
		a.startDocker()
		a.known(d5)
		a.must("docker", "rm", "--force", "d5")
		c.forgotten("d5")
	})
	t.Run("the network goes", func(t *testing.T) {
		a.must("docker", "network", "rm", "web")
		b.cleat("net", "rm", "web")
		for _, h := range c.hosts {
			c.eventually("network gone on "+h.name, func() error {
				if out := h.cleat("net", "ls"); strings.Contains(out, "web") {
					return errors.New(out)
				}
				return nil
			})
		}
	})
}
