package named_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"cleat/network/named"
)

// stepper does random operations, and to the model what they should do.
type stepper struct {
	tb   *testbed
	r    *rand.Rand
	m    model
	done map[string]int // how often an operation succeeded
}

// step does a random operation, checks that it succeeds or fails as the model says, and returns
// what it did.
func (s *stepper) step() string {
	network, container := s.pick(modelNetworks), s.pick(modelContainers)
	switch s.r.IntN(14) {
	case 0, 1:
		return s.create(network)
	case 2:
		return s.remove(network)
	case 3, 4, 5:
		return s.connect(network, container)
	case 6:
		return s.disconnect(network, container)
	case 7:
		return s.publish(network, container)
	case 8:
		return s.unpublish(network, container)
	case 9, 10:
		return s.rule()
	case 11:
		return s.removeRule(network)
	case 12:
		return s.policy(network)
	}
	return s.apply()
}

func (s *stepper) pick(words []string) string { return words[s.r.IntN(len(words))] }

// expect checks that an operation succeeded or failed as it should have. It reports whether it
// succeeded.
func (s *stepper) expect(op, what string, err error, ok bool) bool {
	s.tb.t.Helper()
	if (err == nil) != ok {
		s.tb.t.Errorf("%s: got error %v, want success %v", what, err, ok)
	}
	if err == nil {
		s.done[op]++
	}
	return err == nil
}

// endpoint returns a container on a network; nil if it is not on it.
func (m model) endpoint(network, container string) *modelEndpoint {
	if m[network] == nil {
		return nil
	}
	return m[network].on[container]
}

func (m model) isFree(port int) bool {
	for _, n := range m {
		for _, e := range n.on {
			if e.ports[port] {
				return false
			}
		}
	}
	return true
}

func tcp(host int, port uint16) []named.Port {
	return []named.Port{{Protocol: "tcp", HostPort: uint16(host), Port: port}}
}

func (s *stepper) create(network string) string {
	what := "create " + network
	driver := s.pick([]string{named.Bridge, named.Routed})
	err := s.tb.create(named.NetworkSpec{Name: network, Driver: driver, Subnets: []named.Subnet{{Prefix: modelSubnet(network)}}})
	if s.expect("create", what, err, s.m[network] == nil) {
		s.m[network] = &modelNetwork{driver: driver, subnet: modelSubnet(network), on: map[string]*modelEndpoint{}}
	}
	return what
}

func (s *stepper) remove(network string) string {
	force := s.r.IntN(2) == 0
	what := fmt.Sprintf("rm %s, force %v", network, force)
	n := s.m[network]
	if s.expect("rm", what, s.tb.remove(network, force), n != nil && (force || len(n.on) == 0)) {
		delete(s.m, network)
	}
	return what
}

func (s *stepper) connect(network, container string) string {
	port := 8000 + s.r.IntN(4)
	what := fmt.Sprintf("connect %s to %s, port %d", container, network, port)
	_, err := s.tb.connect(network, container, named.Connection{Ports: tcp(port, 80)})
	if s.expect("connect", what, err, s.m[network] != nil && s.m.endpoint(network, container) == nil && s.m.isFree(port)) {
		s.m[network].on[container] = &modelEndpoint{ports: map[int]bool{port: true}}
	}
	return what
}

func (s *stepper) disconnect(network, container string) string {
	what := fmt.Sprintf("disconnect %s from %s", container, network)
	if s.expect("disconnect", what, s.tb.disconnect(network, container), s.m.endpoint(network, container) != nil) {
		delete(s.m[network].on, container)
	}
	return what
}

func (s *stepper) publish(network, container string) string {
	port := 8000 + s.r.IntN(4)
	what := fmt.Sprintf("publish %d of %s on %s", port, container, network)
	err := s.tb.onHost(func() error {
		_, err := named.Publish(s.tb.t.Context(), s.tb.cfg, network, container, tcp(port, 81))
		return err
	})
	e := s.m.endpoint(network, container)
	if s.expect("publish", what, err, e != nil && s.m.isFree(port)) {
		e.ports[port] = true
	}
	return what
}

func (s *stepper) unpublish(network, container string) string {
	what := fmt.Sprintf("withdraw all ports of %s on %s", container, network)
	err := s.tb.onHost(func() error {
		_, err := named.Unpublish(s.tb.t.Context(), s.tb.cfg, network, container, nil)
		return err
	})
	e := s.m.endpoint(network, container)
	if s.expect("unpublish", what, err, e != nil) {
		clear(e.ports)
	}
	return what
}

// ruleText returns a random rule without its verb.
func (s *stepper) ruleText(from string) string {
	to := []string{"any", "198.51.100.0/24", "203.0.113.7"}
	for _, n := range modelNetworks {
		to = append(to, n, n+"/a", n+"/b")
	}
	return from + " to " + s.pick(to) + s.pick([]string{"", ":80", ":80-81/tcp", ":53/udp"})
}

func (s *stepper) from(network string) string {
	return s.pick([]string{network, network + "/a", network + "/b", network + "/c"})
}

func (s *stepper) exists(network string) bool { return s.m[network] != nil }

// parse returns a rule if it can be had, with its network.
func (s *stepper) parse(allow bool, text string) (rule named.Rule, home *modelNetwork) {
	r, err := named.ParseRule(allow, text, s.exists)
	if err != nil {
		return r, nil
	}
	from, _, _ := strings.Cut(r.From.Network, "/")
	return r, s.m[from]
}

func (s *stepper) rule() string {
	allow, text := s.r.IntN(2) == 0, s.ruleText(s.from(s.pick(modelNetworks)))
	what := fmt.Sprintf("rule %s, allow %v", text, allow)
	r, home := s.parse(allow, text)
	err := s.tb.onHost(func() error {
		do := named.Deny
		if allow {
			do = named.Allow
		}
		_, err := do(s.tb.t.Context(), s.tb.cfg, text)
		return err
	})
	if s.expect("rule", what, err, home != nil) {
		opposite := r
		opposite.Allow = !allow
		home.rules = append(slices.DeleteFunc(home.rules, func(old string) bool { return old == r.String() || old == opposite.String() }), r.String())
	}
	return what
}

func (s *stepper) removeRule(network string) string {
	text := "allow " + s.ruleText(s.from(network))
	if n := s.m[network]; n != nil && len(n.rules) > 0 {
		text = s.pick(n.rules)
	}
	what := "remove rule " + text
	verb, rest, _ := strings.Cut(text, " ")
	r, home := s.parse(verb == "allow", rest)
	ok := home != nil && slices.Contains(home.rules, r.String())
	err := s.tb.onHost(func() error {
		_, err := named.RemoveRule(s.tb.t.Context(), s.tb.cfg, verb == "allow", rest)
		return err
	})
	if s.expect("remove rule", what, err, ok) {
		home.rules = slices.DeleteFunc(home.rules, func(old string) bool { return old == r.String() })
	}
	return what
}

// rules returns random rules of a network.
func (s *stepper) rules(network string, exists func(string) bool) (all []named.Rule) {
	for range s.r.IntN(4) {
		if r, err := named.ParseRule(s.r.IntN(2) == 0, s.ruleText(s.from(network)), exists); err == nil {
			all = append(all, r)
		}
	}
	return all
}

func ruleTexts(rules []named.Rule) (texts []string) {
	for _, r := range rules {
		texts = append(texts, r.String())
	}
	return texts
}

func (s *stepper) policy(network string) string {
	rules, deny := s.rules(network, s.exists), s.r.IntN(2) == 0
	what := fmt.Sprintf("policy of %s: %v, default deny %v", network, rules, deny)
	err := s.tb.onHost(func() error { return named.SetPolicy(s.tb.t.Context(), s.tb.cfg, network, rules, deny) })
	if s.expect("policy", what, err, s.m[network] != nil) {
		s.m[network].rules, s.m[network].defaultDeny = ruleTexts(rules), deny
	}
	return what
}

// apply applies a random file. Its ports are those that no other operation publishes.
func (s *stepper) apply() string {
	t := s.tb.t
	prune := s.r.IntN(2) == 0
	after := model{}
	for _, network := range modelNetworks {
		if s.r.IntN(4) == 0 {
			continue
		}
		n := &modelNetwork{driver: s.pick([]string{named.Bridge, named.Routed}), subnet: modelSubnet(network), defaultDeny: s.r.IntN(4) == 0, on: map[string]*modelEndpoint{}}
		if old := s.m[network]; old != nil {
			n.driver = old.driver
		}
		for i, container := range modelContainers {
			if s.r.IntN(2) == 0 {
				continue
			}
			n.on[container] = &modelEndpoint{ports: map[int]bool{}}
			if s.r.IntN(2) == 0 {
				n.on[container].ports[8100+10*slices.Index(modelNetworks, network)+i] = true
			}
		}
		after[network] = n
	}
	for _, network := range slices.Sorted(maps.Keys(after)) {
		after[network].rules = ruleTexts(s.rules(network, func(n string) bool { return after[n] != nil }))
	}
	text := after.file()
	w, err := named.ParseFile("random.yaml", []byte(text))
	must(t, err)
	err = s.tb.onHost(func() error {
		changes, err := named.Plan(t.Context(), s.tb.cfg, w, prune)
		if err != nil {
			return err
		}
		return named.Apply(t.Context(), s.tb.cfg, changes, func(named.PlannedChange) {})
	})
	what := fmt.Sprintf("apply, prune %v:\n%s", prune, text)
	if s.expect("apply", what, err, true) {
		s.m.become(after, prune)
		assertNothingToChange(t, s.tb, w, prune)
	}
	return what
}

// assertNothingToChange checks that a file that was applied has no changes left.
func assertNothingToChange(t *testing.T, tb *testbed, w *named.Wanted, prune bool) {
	t.Helper()
	must(t, tb.onHost(func() error {
		again, err := named.Plan(t.Context(), tb.cfg, w, prune)
		for _, c := range again {
			t.Errorf("after apply there is still to do: %s", c.Text)
		}
		return err
	}))
}

// become makes a model what a file describes. Containers that stay keep their addresses.
func (m model) become(file model, prune bool) {
	for network, n := range file {
		old := m[network]
		if old == nil {
			m[network] = n
			continue
		}
		for container, e := range n.on {
			if was := old.on[container]; was != nil {
				e.address = was.address
			}
		}
		if !prune {
			for container, was := range old.on {
				if n.on[container] == nil {
					n.on[container] = was
				}
			}
		}
		m[network] = n
	}
	if prune {
		maps.DeleteFunc(m, func(network string, _ *modelNetwork) bool { return file[network] == nil })
	}
}

// file returns the text of a file that describes the model.
func (m model) file() string {
	var b strings.Builder
	b.WriteString("networks:\n")
	for _, network := range slices.Sorted(maps.Keys(m)) {
		n := m[network]
		fmt.Fprintf(&b, "  %s:\n    driver: %s\n    subnets: [{subnet: %s}]\n    default_deny: %v\n", network, n.driver, n.subnet, n.defaultDeny)
		if len(n.rules) > 0 {
			fmt.Fprintf(&b, "    rules:\n    - %q\n", n.rules[0])
			for _, r := range n.rules[1:] {
				fmt.Fprintf(&b, "    - %q\n", r)
			}
		}
		if len(n.on) == 0 {
			continue
		}
		b.WriteString("    containers:\n")
		for _, container := range slices.Sorted(maps.Keys(n.on)) {
			fmt.Fprintf(&b, "      %s: {ports: [", container)
			for port := range n.on[container].ports {
				fmt.Fprintf(&b, "%q", fmt.Sprintf("%d:80", port))
			}
			b.WriteString("]}\n")
		}
	}
	if len(m) == 0 {
		return "networks: {}\n"
	}
	return b.String()
}
