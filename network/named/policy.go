package named

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/network/firewall"
)

// exists reports whether there is a network of a name.
func (s Store) exists(name string) bool {
	_, err := s.Network(name)
	return err == nil
}

// rules returns the rules of networks. A rule about a network that was removed since matches
// nothing.
func rulesOf(networks []*Network) ([]Rule, error) {
	var all []Rule
	for _, n := range networks {
		for _, text := range n.Rules {
			r, err := parseStored(text)
			if err != nil {
				return nil, fmt.Errorf("read rules of network %s: %w", n.Name, err)
			}
			all = append(all, r)
		}
	}
	return append(all, isolationRules(networks)...), nil
}

// parseStored parses a rule as Rule.String writes it. Its networks are explicit, so every word
// that could be one is one.
func parseStored(text string) (Rule, error) {
	verb, rest, _ := strings.Cut(text, " ")
	if verb != "allow" && verb != "deny" {
		return Rule{}, badSpec("RULE", text, "want allow or deny first")
	}
	return ParseRule(verb == "allow", rest, func(string) bool { return true })
}

// ParseRules parses a policy file: one "allow RULE", "deny RULE" or "default allow|deny" a line;
// # starts a comment. name is the file's name in messages. The error has a *FileError for each
// invalid line.
func ParseRules(name string, r io.Reader, exists func(network string) bool) (rules []Rule, defaultDeny bool, err error) {
	var errs []error
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		verb, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
		fail := func(problem string) {
			errs = append(errs, &FileError{File: name, Line: n, Column: 1, Problem: problem})
		}
		switch verb {
		case "":
		case "allow", "deny":
			one, err := ParseRule(verb == "allow", strings.TrimSpace(rest), exists)
			if err != nil {
				fail(err.Error())
				continue
			}
			rules = append(rules, one)
		case "default":
			if defaultDeny = strings.TrimSpace(rest) == "deny"; !defaultDeny && strings.TrimSpace(rest) != "allow" {
				fail("default: want allow or deny")
			}
		default:
			fail(`want "allow RULE", "deny RULE" or "default allow|deny"`)
		}
	}
	return rules, defaultDeny, errors.Join(append(errs, lines.Err())...)
}

// Allow and Deny add a rule to the network that it belongs to. A rule of the other verb for the
// same traffic is replaced. text is what ParseRule reads.
func Allow(ctx context.Context, cfg Config, text string) (Rule, error) {
	return addRule(ctx, cfg, true, text)
}

// Deny is Allow for a rule that denies.
func Deny(ctx context.Context, cfg Config, text string) (Rule, error) {
	return addRule(ctx, cfg, false, text)
}

func addRule(ctx context.Context, cfg Config, allow bool, text string) (Rule, error) {
	r, err := ParseRule(allow, text, cfg.store().exists)
	if err != nil {
		return r, err
	}
	opposite := r
	opposite.Allow = !r.Allow
	return r, changeRules(ctx, cfg, r.home(), func(n *Network) error {
		n.Rules = slices.DeleteFunc(slices.Clone(n.Rules), func(old string) bool { return old == opposite.String() || old == r.String() })
		n.Rules = append(n.Rules, r.String())
		return nil
	})
}

// NoRuleError means that there is no rule as given.
type NoRuleError struct {
	Rule  Rule
	Rules []string // of its network
}

func (e *NoRuleError) Error() string { return "there is no rule " + e.Rule.String() }

// RemoveRule removes a rule.
func RemoveRule(ctx context.Context, cfg Config, allow bool, text string) (Rule, error) {
	r, err := ParseRule(allow, text, cfg.store().exists)
	if err != nil {
		return r, err
	}
	return r, changeRules(ctx, cfg, r.home(), func(n *Network) error {
		left := slices.DeleteFunc(slices.Clone(n.Rules), func(old string) bool { return old == r.String() })
		if len(left) == len(n.Rules) {
			return &NoRuleError{r, n.Rules}
		}
		n.Rules = left
		return nil
	})
}

// SetPolicy replaces all rules of a network. Each must belong to it.
func SetPolicy(ctx context.Context, cfg Config, network string, rules []Rule, defaultDeny bool) error {
	var texts []string
	for _, r := range rules {
		if r.home() != network {
			return badSpec("RULE", r.String(), "belongs to network "+r.home()+", not to "+network)
		}
		texts = append(texts, r.String())
	}
	return changeRules(ctx, cfg, network, func(n *Network) error {
		n.Rules, n.DefaultDeny = texts, defaultDeny
		return nil
	})
}

// changeRules changes the rules of a network, first in its file and then in the kernel.
// Connections that are no longer allowed end.
func changeRules(ctx context.Context, cfg Config, network string, change func(*Network) error) error {
	if n, err := cfg.store().Network(network); err == nil && n.Spans && cfg.Registrar != nil {
		now := *n
		if err := errors.Join(change(&now), now.normalize()); err != nil {
			return err
		}
		return cfg.Registrar.Change(ctx, now.NetworkSpec)
	}
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	unlock, err := s.store.lockNetworks(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := s.store.Network(network)
	if err != nil {
		return err
	}
	now := *old
	if err := change(&now); err != nil {
		return err
	}
	if err := now.normalize(); err != nil {
		return err
	}
	p, err := s.population()
	if err != nil {
		return err
	}
	before, err := p.permissions(old)
	if err != nil {
		return err
	}
	after, err := p.permissions(&now)
	if err != nil {
		return err
	}
	o, err := s.begin(ctx, network, record{Network: network, Spec: old})
	if err != nil {
		return err
	}
	if err := statedir.WriteJSON(s.store.networkFile(network), &now); err != nil {
		return errors.Join(err, o.end())
	}
	if err := s.checkpoint(); err != nil {
		return errors.Join(err, o.giveUp())
	}
	if err := s.applyRules(ctx, firewall.Change{Add: firewall.State{Flows: after.Flows}, Remove: firewall.State{Flows: before.Flows}}); err != nil {
		return errors.Join(err, o.giveUp())
	}
	// A bridge passes packets through the rules once these are there: the first packet that they
	// see of a connection decides about it.
	if err := s.filterBridge(&now); err != nil {
		return errors.Join(err, o.giveUp())
	}
	if err := s.checkpoint(); err != nil {
		return errors.Join(err, o.giveUp())
	}
	if _, err := tableOf(s.store, s.host).EndConnections(before, after); err != nil {
		return errors.Join(err, o.giveUp())
	}
	return o.end()
}

// permissions returns the rules of all networks as far as they are about connections that exist:
// without endpoints, but with their ports. n takes the place of the network of its name.
func (p population) permissions(n *Network) (all firewall.State, err error) {
	p.networks = slices.Clone(p.networks)
	for i, other := range p.networks {
		if other.Name == n.Name {
			p.networks[i] = n
		}
		all.Networks = append(all.Networks, p.networks[i].rules().Networks...)
		for _, e := range p.endpoints {
			if e.Network == other.Name {
				all.Ports = append(all.Ports, p.networks[i].portsOf(e)...)
			}
		}
	}
	rules, err := rulesOf(p.networks)
	if err == nil {
		all.Flows = compile(rules, p)
	}
	return all, err
}

// endConnections ends connections that were allowed when old was the network of its name, and no
// longer are.
func (s *session) endConnections(old, now *Network) error {
	p, err := s.population()
	if err != nil {
		return err
	}
	before, err := p.permissions(old)
	if err != nil {
		return err
	}
	after, err := p.permissions(now)
	if err != nil {
		return err
	}
	_, err = tableOf(s.store, s.host).EndConnections(before, after)
	return err
}

// filterBridge makes the host filter packets from one container to another on the network's
// bridge, if there are rules about them. It costs throughput, so other bridges are left alone.
func (s *session) filterBridge(n *Network) error {
	if n.Driver != Bridge {
		return nil
	}
	networks, err := s.store.Networks()
	if err != nil {
		return err
	}
	rules, err := rulesOf(networks)
	if err != nil {
		return err
	}
	within := func(sel Selector) bool { return sel.Any || sel.Network == n.Name }
	filter := n.DefaultDeny || slices.ContainsFunc(rules, func(r Rule) bool { return within(r.From) && within(r.To) })
	l, err := link.Find(s.host, n.device())
	if err != nil {
		return err
	}
	return l.FilterBridge(filter)
}
