package mptcp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Plan is a list of changes to make. Close it after use. It is not safe for concurrent
// use.
type Plan struct {
	Used   []string // devices that connections can use afterwards
	Unused []string // devices for which there is no place
	Notes  []string // further information for the user

	steps  []step
	file   *file
	before *State // content of the state file; nil if there is none
	during *State // its content while steps are carried out
	after  *State // its final content; nil if the file is removed
	ns     *netns.NS
	handle *netlink.Handle
}

type step struct {
	what     string // in the words of ip(8)
	do, undo func() error
}

// Steps returns the changes in the words of ip(8).
func (p *Plan) Steps() []string {
	var all []string
	for _, s := range p.steps {
		all = append(all, s.what)
	}
	return all
}

// New plans for Config.Devices and changes nothing. Errors in the request are a
// *DeviceError, a *link.Lack, a *SwitchError or ErrTaken.
func New(cfg Config) (*Plan, error) {
	if err := CheckSwitches(cfg.NS); err != nil {
		return nil, err
	}
	return newPlan(cfg)
}

// Undo plans to remove what plans for ns have made, and nothing else.
func Undo(ns *netns.NS, dir string) (*Plan, error) { return newPlan(Config{NS: ns, Dir: dir}) }

func newPlan(cfg Config) (p *Plan, err error) {
	p = &Plan{ns: cfg.NS}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.handle, err = link.Handle(cfg.NS); err != nil {
		return nil, err
	}
	if p.file, err = openState(cfg.NS, cfg.Dir, false); err != nil {
		return nil, err
	}
	if p.before, err = p.file.read(); err != nil {
		return nil, err
	}
	return p, p.compare(cfg)
}

// Close releases the namespace. It does not undo Apply.
func (p *Plan) Close() {
	if p.handle != nil {
		p.handle.Close()
	}
}

// compare computes the steps from the actual to the wanted state.
func (p *Plan) compare(cfg Config) error {
	g, err := readRouting(p.handle)
	if err != nil {
		return fmt.Errorf("read routing of %s: %w", p.ns, err)
	}
	existing, err := link.MPTCPEndpoints(p.ns)
	if err != nil {
		return err
	}
	limits, err := link.ReadMPTCPLimits(p.ns)
	if err != nil {
		return err
	}
	ours, foreign := p.divide(existing)
	var want target
	if len(cfg.Devices) > 0 {
		if want, err = p.want(cfg, g, foreign); err != nil {
			return err
		}
		p.Used, p.Unused = want.used, want.unused
	}
	kept, stale, err := p.endpoints(&want, ours, foreign)
	if err != nil {
		return err
	}
	for _, e := range stale {
		p.steps = append(p.steps, opposite(p.addEndpoint(e)))
	}
	for _, r := range without(g.rules, want.rules) {
		p.steps = append(p.steps, opposite(p.addRule(r)))
	}
	for _, r := range slices.Backward(without(g.ours, want.routes)) {
		p.steps = append(p.steps, opposite(p.addRoute(r)))
	}
	p.limits(cfg, want, limits)
	for _, r := range without(want.routes, g.ours) {
		p.steps = append(p.steps, p.addRoute(r))
	}
	for _, r := range without(want.rules, g.rules) {
		p.steps = append(p.steps, p.addRule(r))
	}
	for _, e := range without(want.endpoints, kept) {
		p.steps = append(p.steps, p.addEndpoint(e))
	}
	if len(cfg.Devices) > 0 {
		p.after.Devices, p.after.Unused, p.after.Endpoints = cfg.Devices, want.unused, want.endpoints
		during := *p.after
		during.Endpoints = slices.Concat(ours, without(want.endpoints, ours))
		p.during = &during
	} else {
		p.during = p.before
	}
	return nil
}

func (p *Plan) want(cfg Config, g *routing, foreign []link.MPTCPEndpoint) (target, error) {
	all, err := cfg.sources(p.handle)
	if err != nil {
		return target{}, err
	}
	cfg.Limits = cmp.Or(cfg.Limits, cfg.Most.Subflows)
	want := cfg.target(g, all, max(cfg.Most.Endpoints-len(foreign), 0))
	return want, nil
}

// divide separates our endpoints from those of others.
func (p *Plan) divide(existing []link.MPTCPEndpoint) (ours, foreign []link.MPTCPEndpoint) {
	for _, e := range existing {
		known := p.before != nil && slices.ContainsFunc(p.before.Endpoints, func(o link.MPTCPEndpoint) bool {
			return o.ID == e.ID && o.Addr == e.Addr && o.Device == e.Device
		})
		if known {
			ours = append(ours, e)
		} else {
			foreign = append(foreign, e)
		}
	}
	return ours, foreign
}

// endpoints assigns ids to wanted endpoints: the id of an existing one, or a free one.
// Identical endpoints made by somebody else remain theirs.
func (p *Plan) endpoints(want *target, ours, foreign []link.MPTCPEndpoint) (kept, stale []link.MPTCPEndpoint, err error) {
	taken := map[int]bool{0: true}
	for _, e := range slices.Concat(ours, foreign) {
		taken[e.ID] = true
	}
	var mine []link.MPTCPEndpoint
	for _, e := range want.endpoints {
		same := func(o link.MPTCPEndpoint) bool { return o.Addr == e.Addr && o.Port == 0 }
		if i := slices.IndexFunc(foreign, same); i >= 0 {
			e.ID = foreign[i].ID
			if e.Device = foreign[i].Device; e != foreign[i] { // a binding to a device does no harm
				return nil, nil, fmt.Errorf("%s %w (%s)", e.Addr, ErrTaken, Describe(foreign[i]))
			}
			p.Notes = append(p.Notes, fmt.Sprintf("%s is already an endpoint made by another program; it stays when this is undone", e.Addr))
			continue
		}
		if i := slices.IndexFunc(ours, same); i >= 0 {
			e.ID = ours[i].ID
		} else {
			for taken[e.ID] {
				e.ID++
			}
			taken[e.ID] = true
		}
		mine = append(mine, e)
	}
	want.endpoints = mine
	for _, e := range ours {
		if slices.Contains(mine, e) {
			kept = append(kept, e)
		} else {
			stale = append(stale, e)
		}
	}
	return kept, stale, nil
}

// limits plans the limits and the final content of the state file.
func (p *Plan) limits(cfg Config, want target, now link.MPTCPLimits) {
	if len(cfg.Devices) > 0 {
		p.after = &State{Before: now, Set: want.limits}
		if p.before != nil {
			p.after.Before = p.before.Before
		}
		if now != want.limits {
			p.steps = append(p.steps, p.setLimits(now, want.limits))
		}
		return
	}
	switch {
	case p.before == nil || now == p.before.Before:
	case now == p.before.Set:
		p.steps = append(p.steps, p.setLimits(now, p.before.Before))
	default:
		p.Notes = append(p.Notes, fmt.Sprintf("another program has changed the limits since (subflows %d, add_addr_accepted %d); they stay", now.Subflows, now.AcceptedAddAddrs))
	}
}

func without[T comparable](all, some []T) []T {
	var out []T
	for _, e := range all {
		if !slices.Contains(some, e) {
			out = append(out, e)
		}
	}
	return out
}

// opposite turns a step that adds into one that removes.
func opposite(s step) step {
	return step{delWords(s.what), s.undo, s.do}
}

func (p *Plan) addEndpoint(e link.MPTCPEndpoint) step {
	return step{"ip mptcp endpoint add " + Describe(e),
		func() error { return link.AddMPTCPEndpoint(p.ns, e) },
		func() error { return link.DeleteMPTCPEndpoint(p.ns, e.ID) }}
}

func (p *Plan) addRule(r rule) step {
	return step{ipWords(r.from.Is6()) + "rule add " + r.String(),
		func() error { return p.handle.RuleAdd(r.netlink()) },
		func() error { return p.handle.RuleDel(r.netlink()) }}
}

func (p *Plan) addRoute(r route) step {
	return step{ipWords(r.to.Addr().Is6()) + "route add " + r.String(),
		func() error { return p.handle.RouteAdd(r.netlink()) },
		func() error {
			err := p.handle.RouteDel(r.netlink())
			if errors.Is(err, unix.ESRCH) {
				return nil // the route disappeared when its link went down or lost the address
			}
			return err
		}}
}

func (p *Plan) setLimits(now, to link.MPTCPLimits) step {
	return step{fmt.Sprintf("ip mptcp limits set subflows %d add_addr_accepted %d", to.Subflows, to.AcceptedAddAddrs),
		func() error { return link.SetMPTCPLimits(p.ns, to) },
		func() error { return link.SetMPTCPLimits(p.ns, now) }}
}

func ipWords(six bool) string {
	if six {
		return "ip -6 "
	}
	return "ip "
}
