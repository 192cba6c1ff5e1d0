package named

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"cleat/internal/statedir"
	"cleat/network/firewall"
	"cleat/network/names"
	"cleat/policy"
)

// Rules about DNS names are about the addresses that containers have learned for them from the
// network's name server. Before a container gets an answer, the keeper adds its addresses to the
// rules in the kernel, so that they apply from the first packet. How long an address counts is up
// to package policy, which has the same rules for `cleat run`.

// learnedFile has the addresses of the names that rules are about. It is lost when the machine
// restarts.
func (s Store) learnedFile() string { return s.RunPath("learned.json") }

// learned returns the addresses of DNS names that rules are about.
func (s Store) learned() (map[string][]netip.Addr, error) {
	all, err := statedir.ReadJSON[map[string][]netip.Addr](s.learnedFile())
	if all == nil {
		return nil, err
	}
	return *all, err
}

// learner adds learned addresses to rules. It is not safe for concurrent use.
type learner struct {
	cfg   Config
	table *policy.Policy
	known map[netip.Addr]bool // addresses that were learned, and may have expired
}

func newLearner(cfg Config) (*learner, error) {
	table, err := policy.New(policy.Config{})
	if err != nil {
		return nil, err
	}
	l := &learner{cfg: cfg, table: table, known: map[netip.Addr]bool{}}
	before, err := cfg.store().learned()
	for name, addrs := range before { // of an earlier keeper
		l.add(name, addrs, 0)
	}
	return l, err
}

func (l *learner) add(name string, addrs []netip.Addr, ttl time.Duration) {
	l.table.Learn(name, addrs, ttl)
	for _, a := range addrs {
		l.known[a.Unmap()] = true
	}
}

// names returns the addresses that count, by name, and forgets the others.
func (l *learner) names() map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	for a := range l.known {
		names := l.table.Names(a)
		if len(names) == 0 {
			delete(l.known, a)
		}
		for _, name := range names {
			all[name] = append(all[name], a)
		}
	}
	for _, addrs := range all {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	return all
}

// learn takes note of an answer, and changes the rules in the kernel if one is about its name.
func (l *learner) learn(ctx context.Context, e names.Learned) error {
	s, err := open(l.cfg)
	if err != nil {
		return err
	}
	defer s.close()
	networks, err := s.store.Networks()
	if err != nil {
		return err
	}
	rules, err := rulesOf(networks)
	if err != nil || !slices.ContainsFunc(rules, func(r Rule) bool { return r.To.Name != "" && policy.NameMatches(e.Name, r.To.Name) }) {
		return err
	}
	p, err := s.population()
	if err != nil {
		return err
	}
	before := compile(rules, p)
	l.add(e.Name, e.Addrs, time.Duration(e.TTLSeconds)*time.Second)
	p.learned = l.names()
	if err := statedir.WriteJSON(s.store.learnedFile(), p.learned); err != nil {
		return err
	}
	return s.applyRules(ctx, firewall.Change{Add: firewall.State{Flows: compile(rules, p)}, Remove: firewall.State{Flows: before}})
}
