package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/lab/labtest"
)

// commandWithin bounds a command. Those that wait for a registry that does not answer take some seconds.
const commandWithin = 60 * time.Second

// whole reports whether nothing is broken, so that each command must succeed.
func (s *schedule) whole() bool { return len(s.faults) == 0 && len(s.shaken) == 0 }

// command runs a command on a host. It returns an error if the command fails while something is broken; otherwise
// the test fails.
func (s *schedule) command(h *host, args ...string) (string, error) {
	s.c.t.Helper()
	ctx, cancel := context.WithTimeout(s.c.t.Context(), commandWithin)
	defer cancel()
	began := time.Now()
	out, err := h.run(ctx, args...)
	s.note("%s: %s (%.2f s)%s", h.name, strings.Join(args, " "), time.Since(began).Seconds(), map[bool]string{true: "", false: " fails"}[err == nil])
	if err == nil {
		return out, nil
	}
	s.note("  %s", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "\n             "))
	if s.whole() || ctx.Err() != nil {
		s.c.t.Fatal(err)
	}
	return out, err
}

// connect connects a new container. It returns nil if that is refused.
func (s *schedule) connect(h *host, n *spanned, args ...string) *inmate {
	s.c.t.Helper()
	if len(s.containers) >= mostContainers {
		return nil
	}
	name := fmt.Sprintf("k%d", s.named)
	if s.named++; n.name == "shop" { // rules are about these names
		i := 0
		for slices.ContainsFunc(s.containers, func(k *inmate) bool { return k.name == fmt.Sprintf("s%d", i) }) {
			i++
		}
		name = fmt.Sprintf("s%d", i)
	}
	k := &inmate{container: h.newContainerAt(name, fmt.Sprintf("%d-%s", s.named, name)), network: n}
	if !s.attach(k, args...) {
		s.gone = append(s.gone, k)
		return nil
	}
	labtest.Serve(s.c.t, k.NS, fmt.Sprintf(":%d", echoPort), labtest.Reply(k.name))
	return k
}

// attach connects a container to its network.
func (s *schedule) attach(k *inmate, args ...string) bool {
	s.c.t.Helper()
	out, err := s.command(k.host, append([]string{"cleat", "net", "connect", k.network.name, k.path, "--alias", k.name, "--json"}, args...)...)
	if err != nil {
		return false
	}
	var got struct {
		Endpoint struct {
			Addresses []netip.Addr `json:"addresses"`
		} `json:"endpoint"`
	}
	must(s.c.t, json.Unmarshal([]byte(out), &got))
	k.addr, k.fresh = got.Endpoint.Addresses[0], true
	s.note("  %s has %s", k.name, k.addr)
	s.containers = append(s.containers, k)
	return true
}

// connectAt connects a container with an address that any host may have.
func (s *schedule) connectAt() {
	n := pick(s, s.networks)
	a := n.subnet.Addr().As4()
	if n.subnet.Bits() < 24 {
		a[2] += byte(s.r.IntN(3))
	}
	a[3] = byte(64*s.r.IntN(4) + 2 + s.r.IntN(60)) // not the first ones of a block, which hosts have
	addr := netip.AddrFrom4(a)
	if slices.ContainsFunc(s.containers, func(k *inmate) bool { return k.addr == addr }) {
		return
	}
	s.connect(s.anyHost(), n, "--ip", addr.String())
}

// lost takes a container out of the model.
func (s *schedule) lost(k *inmate) {
	s.containers = slices.DeleteFunc(s.containers, func(o *inmate) bool { return o == k })
	s.gone = append(s.gone, k)
}

// disconnect disconnects a container, which works whatever is broken.
func (s *schedule) disconnect(k *inmate) {
	s.c.t.Helper()
	if _, err := s.command(k.host, "cleat", "net", "disconnect", k.network.name, k.path); err != nil {
		s.c.t.Fatal(err)
	}
	s.containers = slices.DeleteFunc(s.containers, func(o *inmate) bool { return o == k })
}

func (s *schedule) disconnectAny() {
	if len(s.containers) > 3 {
		k := pick(s, s.containers)
		s.disconnect(k)
		s.gone = append(s.gone, k)
	}
}

// move moves a container with its address to another host.
func (s *schedule) move() {
	if len(s.containers) == 0 {
		return
	}
	k, to := pick(s, s.containers), s.anyHost()
	from, was := k.host, k.addr
	s.disconnect(k)
	k.container = &container{Node: k.Node, host: to, name: k.name, path: k.path}
	if s.attach(k, "--ip", was.String()) || s.attach(k) {
		return
	}
	k.container = &container{Node: k.Node, host: from, name: k.name, path: k.path}
	s.gone = append(s.gone, k)
}

// createNetwork creates a network on a host.
func (s *schedule) createNetwork(n *spanned) {
	h := s.hostWithNode()
	if h == nil {
		return
	}
	args := []string{"cleat", "net", "create", n.name, "--span", "--subnet", n.subnet.String()}
	if n.internal {
		args = append(args, "--internal")
	}
	if _, err := s.command(h, args...); err != nil {
		s.unsureNets[n.name] = true
		return
	}
	n.fresh = true
	s.networks = append(s.networks, n)
}

const permanentNetworks = 3

// createAny creates a network, of a name and a subnet that others may have had.
func (s *schedule) createAny() {
	name := pick(s, []string{"temp0", "temp1"})
	if s.unsureNets[name] || slices.ContainsFunc(s.networks, func(n *spanned) bool { return n.name == name }) {
		return
	}
	s.createNetwork(&spanned{name: name, subnet: temporary(name)})
	if s.whole() { // otherwise hosts may not have it for a while
		s.awaitNetworks()
	}
}

func temporary(name string) netip.Prefix {
	return netip.MustParsePrefix(map[string]string{"temp0": "10.65.0.0/24", "temp1": "10.65.1.0/24"}[name])
}

// removeAny removes a network with its containers.
func (s *schedule) removeAny() {
	h := s.hostWithNode()
	if len(s.networks) == permanentNetworks || h == nil {
		return
	}
	n := pick(s, s.networks[permanentNetworks:])
	if _, err := s.command(h, "cleat", "net", "rm", "--force", n.name); err != nil {
		s.unsureNets[n.name] = true
		return
	}
	s.forget(n)
}

// forget takes a network that was removed out of the model.
func (s *schedule) forget(n *spanned) {
	s.networks = slices.DeleteFunc(s.networks, func(o *spanned) bool { return o == n })
	for _, k := range slices.Clone(s.containers) {
		if k.network == n {
			s.lost(k)
		}
	}
}

// The rules that come and go. All belong to the network shop.
const (
	allowWeb  = "allow web to shop"
	denyFirst = "deny shop/s0 to shop/s1"
	denyAll   = "deny shop to shop/s2"
)

// changeRule adds a rule, or removes it.
func (s *schedule) changeRule() {
	h := s.hostWithNode()
	if h == nil {
		return
	}
	rule := pick(s, []string{allowWeb, denyFirst, denyAll})
	words := strings.Fields(rule)
	args := []string{"cleat", "net", words[0]}
	now := append(slices.Clone(s.rules), rule)
	if slices.Contains(s.rules, rule) {
		args = append(args, "--remove")
		now = slices.DeleteFunc(slices.Clone(s.rules), func(r string) bool { return r == rule })
	}
	s.rulesThen = append(s.rulesThen, s.rules, now)
	if _, err := s.command(h, append(args, words[1:]...)...); err == nil {
		s.rules = now
	}
}

// permits reports whether rules let a container reach another one.
func permits(rules []string, from, to *inmate) bool {
	if from.network != to.network {
		return from.network.name == "web" && to.network.name == "shop" && slices.Contains(rules, allowWeb)
	}
	if from.network.name != "shop" {
		return true
	}
	return !(slices.Contains(rules, denyFirst) && from.name == "s0" && to.name == "s1" || slices.Contains(rules, denyAll) && to.name == "s2")
}
