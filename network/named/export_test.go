package named

import (
	"context"
	"net/netip"

	"cleat/network/firewall"
)

// CheckInterval is checkInterval.
const CheckInterval = checkInterval

// Compile is compile.
func Compile(rules []Rule, networks []*Network, endpoints []*Endpoint, learned map[string][]netip.Addr) []firewall.Flow {
	return compile(rules, population{networks: networks, endpoints: endpoints, learned: learned})
}

// JudgeRules returns 1 if rules that all match a packet accept it, 2 if they drop it, and 0
// without a rule.
func JudgeRules(matching []*Rule) int { return int(judge(matching)) }

// Matches reports whether the selector selects an endpoint by its network, name or label.
func (s Selector) Matches(e *Endpoint) bool { return s.matches(e) }

// ParseStored parses a rule as it is in a file.
func ParseStored(text string) (Rule, error) { return parseStored(text) }

// Decide is Store.Decide for rules and networks that no store has.
func Decide(rules []Rule, networks []*Network, endpoints []*Endpoint, learned map[string][]netip.Addr, t Traffic) Decision {
	return population{networks: networks, endpoints: endpoints, learned: learned}.decide(rules, t)
}

// Exists reports whether there is a network.
func (s Store) Exists(name string) bool { return s.exists(name) }

// SetUnprotected makes a keeper that is not running yet leave rules unprotected, as before Linux 6.9.
func SetUnprotected(k *Keeper, open bool) { k.open = open }

// WantedFlows returns the flows that the kernel should have, as the files say.
func WantedFlows(cfg Config) ([]firewall.Flow, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := s.wantedRules()
	return all.Flows, err
}

// StoreOf returns the store of a configuration, with the files that it remembers.
func StoreOf(cfg Config) Store { return cfg.store() }

// TableOf is tableOf.
var TableOf = tableOf

// AddForgotten and TakeForgotten are methods of Files.
var (
	AddForgotten  = (*Files).addForgotten
	TakeForgotten = (*Files).takeForgotten
)

// Settled is settled.
const Settled = settled

// Signs is signs.
type Signs = signs

// ReleaseForgottenAgain is releaseForgotten for all networks.
func ReleaseForgottenAgain(ctx context.Context, cfg Config, known Signs) ([]string, Signs, error) {
	return releaseForgotten(ctx, cfg, "", known)
}
