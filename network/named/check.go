package named

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cleat/netns"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/names"
)

// Difference is something that the kernel or the files lack, or have too much.
type Difference struct {
	Network   string `json:"network,omitempty"`
	Container string `json:"container,omitempty"`
	What      string `json:"what"`             // in words
	Remedy    string `json:"remedy,omitempty"` // a sentence: what to do, if RepairAll can't
}

func (d Difference) String() string {
	if d.Remedy != "" {
		return d.What + ". " + d.Remedy
	}
	switch {
	case d.Container != "":
		return fmt.Sprintf("%s/%s: %s", d.Network, d.Container, d.What)
	case d.Network != "":
		return d.Network + ": " + d.What
	}
	return d.What
}

// Check compares what is wanted with what exists: devices, addresses, rules, links, names, and
// claims on addresses, names and ports.
func Check(ctx context.Context, cfg Config) ([]Difference, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.check(ctx, true)
}

// check is Check. Without links it leaves out what is inside containers, which takes most of
// the time.
func (s *session) check(ctx context.Context, links bool) ([]Difference, error) {
	networks, err := s.store.Networks()
	if err != nil {
		return nil, err
	}
	var all []Difference
	for _, n := range networks {
		found, err := s.checkNetwork(ctx, n, links)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	rules, err := s.checkRules()
	if err != nil {
		return nil, err
	}
	if len(networks) > 0 {
		all = append(all, s.checkManagers()...)
	}
	ports, err := s.checkPortClaims()
	if err != nil {
		return nil, err
	}
	resolvers, err := s.checkResolvers(ctx, networks)
	return slices.Concat(all, rules, ports, resolvers), err
}

func (s *session) checkNetwork(ctx context.Context, n *Network, links bool) ([]Difference, error) {
	var all []Difference
	add := func(container, format string, args ...any) {
		all = append(all, Difference{Network: n.Name, Container: container, What: fmt.Sprintf(format, args...)})
	}
	missing, err := attach.CheckHost(s.store.Store, n.Name, n.hostSide())
	if err != nil {
		return nil, err
	}
	for _, m := range missing {
		add("", "missing on the host: %s", m)
	}
	parent, err := s.checkParentUp(n)
	if err != nil {
		return nil, err
	}
	if parent != "" {
		add("", "%s", parent)
	}
	endpoints, err := s.store.Endpoints(n.Name)
	if err != nil {
		return nil, err
	}
	unrouted, err := s.unrouted(n, endpoints)
	if err != nil {
		return nil, err
	}
	for _, e := range unrouted {
		add(e.Container.ShortName(), "the host has no route to it")
	}
	owners := map[string]*Endpoint{}
	for _, e := range endpoints {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		owners[endpointID(e.Container)] = e
		if !links {
			continue
		}
		if text := s.checkLink(ctx, e); text != "" {
			add(e.Container.ShortName(), "%s", text)
		}
	}
	taken := map[string]bool{}
	entries, err := s.pool(n).Entries()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if _, reserved := entry.Owner.Reserved(); reserved {
			continue
		}
		taken[entry.Addr.String()+" "+string(entry.Owner)] = true
		if owners[string(entry.Owner)] == nil && s.abandoned(n.Name, string(entry.Owner)) && s.holds(n, entry) {
			add("", "address %s is taken by %s, which is not connected", entry.Addr, entry.Owner)
		}
	}
	for id, e := range owners {
		for _, a := range e.Addresses {
			if n.subnet(a) != nil && !taken[a.String()+" "+id] {
				add(e.Container.ShortName(), "its address %s is not marked as taken", a)
			}
		}
	}
	return append(all, s.checkNameClaims(n, owners)...), nil
}

// checkLink describes what is wrong with an endpoint's link; "" if nothing is, or its container
// does not run.
func (s *session) checkLink(ctx context.Context, e *Endpoint) string {
	a, err := s.store.Attachment(e.AttachmentID)
	if errors.Is(err, fs.ErrNotExist) {
		return "its link was detached"
	}
	if err != nil {
		return err.Error()
	}
	st, err := attach.StatusOf(s.store.Store, a)
	switch {
	case err != nil:
		return err.Error()
	case st.State == attach.Missing:
		return "somebody removed its link " + e.Interface
	case st.State == attach.Down:
		return "somebody brought its link " + e.Interface + " down"
	case st.State == attach.Broken:
		return strings.Join(st.Notes, "; ")
	case e.Container.Manager != "" && st.State == attach.Gone:
		return "its network namespace is gone, and its engine did not disconnect it"
	case e.Container.Manager != "" && st.State == attach.Wanted:
		return "its link is not attached"
	case (st.State == attach.Gone || st.State == attach.Wanted) && s.runs(ctx, e):
		return "it has restarted, and its link was not attached again"
	case st.Lease != nil && !slices.Contains(e.Addresses, st.Lease.Address.Addr()):
		return "its DHCP server has given it the address " + st.Lease.Address.Addr().String()
	}
	return ""
}

// runs reports whether an endpoint's container runs.
func (s *session) runs(ctx context.Context, e *Endpoint) bool {
	_, ns, err := s.Attach.Find(ctx, e.Container.QualifiedName())
	return err == nil && ns.Close() == nil
}

func (s *session) checkNameClaims(n *Network, owners map[string]*Endpoint) []Difference {
	var all []Difference
	claims, _ := os.ReadDir(filepath.Dir(s.store.nameClaim(n.Name, "x")))
	for _, c := range claims {
		owner, err := os.Readlink(s.store.nameClaim(n.Name, c.Name()))
		if err == nil && owners[owner] == nil && s.abandoned(n.Name, owner) && isLink(s.store.nameClaim(n.Name, c.Name()), owner) {
			all = append(all, Difference{Network: n.Name, What: fmt.Sprintf("name %s is taken by %s, which is not connected", c.Name(), owner)})
		}
	}
	return all
}

func (s *session) checkRules() ([]Difference, error) {
	want, err := s.wantedRules()
	if err != nil {
		return nil, err
	}
	if len(want.Networks) == 0 {
		return nil, nil
	}
	found, err := s.Rules.Check(want)
	if err != nil {
		return nil, err
	}
	all := s.checkForeign()
	for _, d := range found {
		all = append(all, Difference{What: "rules: " + d.String()})
	}
	return all, err
}

func (s *session) checkPortClaims() ([]Difference, error) {
	var all []Difference
	err := s.abandonedPorts(func(path, network, id string) {
		all = append(all, Difference{Network: network, What: fmt.Sprintf("port %s is claimed by %s, which does not publish it", filepath.Base(path), id)})
	})
	return all, err
}

// RepairAll makes everything as it is wanted: what Check finds is put right, except links of
// containers that do not run.
func RepairAll(ctx context.Context, cfg Config) (notes []string, err error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if s.notes, err = ReleaseForgotten(ctx, cfg, ""); err != nil {
		return s.notes, err
	}
	unlock, err := s.exclude(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.repair(ctx); err != nil {
		return s.notes, err
	}
	return s.notes, s.repairAll(ctx)
}

func (s *session) repairAll(ctx context.Context) error {
	networks, err := s.store.Networks()
	errs := []error{err}
	if len(networks) > 0 {
		s.claimDevices(ctx)
	}
	for _, n := range networks {
		notes, err := attach.SetUpHost(ctx, s.Attach, n.Name, n.hostSide())
		s.notes = append(s.notes, notes...)
		errs = append(errs, err, s.repairEndpoints(ctx, n), s.repairRoutes(n))
	}
	errs = append(errs, s.syncRules(ctx), s.acceptForeign(ctx))
	for _, n := range networks {
		errs = append(errs, s.repairDevices(n))
	}
	errs = append(errs, s.withNames(ctx, func(c *names.Client) error {
		for _, n := range networks {
			if err := s.sendNetwork(ctx, c, n); err != nil {
				return err
			}
		}
		return nil
	}), s.repairResolvers(ctx))
	return errors.Join(errs...)
}

// repairDevices sets again what vanishes with a network's devices.
func (s *session) repairDevices(n *Network) error {
	if !n.OnHost() {
		return nil
	}
	errs := []error{s.routeLoopback(n.device()), s.filterBridge(n)}
	if n.Driver == Routed {
		endpoints, err := s.store.Endpoints(n.Name)
		errs = append(errs, err)
		for _, e := range endpoints {
			errs = append(errs, s.routeLoopback(n.peer(e.Container)))
		}
	}
	return errors.Join(errs...)
}

// repairEndpoints attaches links again that somebody removed or changed, and frees what no
// endpoint has.
func (s *session) repairEndpoints(ctx context.Context, n *Network) error {
	endpoints, err := s.store.Endpoints(n.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range endpoints {
		if _, err := s.store.Endpoint(n.Name, endpointID(e.Container)); errors.Is(err, fs.ErrNotExist) {
			continue // it is being disconnected
		}
		errs = append(errs, s.claimAgain(n, e))
		if e.Wanted.handsOver() || s.checkLink(ctx, e) == "" { // only its engine can make the link again
			continue
		}
		if followed, err := s.followLease(n, e); err != nil || followed {
			errs = append(errs, err)
			continue
		}
		if err := s.reattach(ctx, n, e); err != nil && !notRunning(err) {
			errs = append(errs, fmt.Errorf("connect %s again: %w", e.label(), parentError(err)))
			continue
		}
		errs = append(errs, s.settleResolver(ctx, e))
	}
	errs = append(errs, s.freeClaims(n))
	return errors.Join(errs...)
}

// followLease gives an endpoint the address that a DHCP server has given its link, and reports
// whether it had another one. Its names follow when the network is sent to the name server.
func (s *session) followLease(n *Network, e *Endpoint) (followed bool, err error) {
	if !n.DHCP || s.store.busy(n.Name, endpointID(e.Container)) {
		return false, nil
	}
	a, err := s.store.Attachment(e.AttachmentID)
	if err != nil {
		return false, nil // reattach reports it
	}
	st, err := attach.StatusOf(s.store.Store, a)
	if err != nil || st.Lease == nil || st.State != attach.Attached || slices.Contains(e.Addresses, st.Lease.Address.Addr()) {
		return false, nil
	}
	e.Addresses = slices.DeleteFunc(slices.Clone(e.Addresses), func(a netip.Addr) bool { return n.subnet(a) == nil })
	e.Addresses = append(e.Addresses, st.Lease.Address.Addr())
	return true, s.store.writeEndpoint(e)
}

// notRunning reports whether err means that a container does not run, so that the keeper
// attaches its link when it does.
func notRunning(err error) bool {
	return errors.Is(err, netns.ErrNotFound) || errors.As(err, new(*find.NotRunning)) || errors.As(err, new(*find.NotFound)) || errors.Is(err, find.ErrGone)
}

// reattach makes an endpoint's link again.
func (s *session) reattach(ctx context.Context, n *Network, e *Endpoint) error {
	a, err := s.store.Attachment(e.AttachmentID)
	if errors.Is(err, fs.ErrNotExist) {
		spec := n.attachSpec(e)
		spec.Name = e.Interface
		_, err = attach.Attach(ctx, s.attachConfig(e), e.Container.QualifiedName(), spec)
		return err
	}
	if err != nil {
		return err
	}
	_, err = attach.Reattach(ctx, s.attachConfig(e), a)
	return err
}

// attachConfig returns the configuration for attaching an endpoint's link again. Package find may not
// know a container that has a manager.
func (s *session) attachConfig(e *Endpoint) attach.Config {
	cfg := s.Attach
	if e.Container.Manager != "" {
		cfg.Find = func(context.Context, string) (attach.Container, *netns.NS, error) {
			ns, err := netns.Open(e.Container.Path)
			return e.Container, ns, err
		}
	}
	return cfg
}

// Prune disconnects containers that do not exist any more, and removes networks without
// containers if all is set. It returns what it removed, in words. With plan it only says what it
// would remove.
func Prune(ctx context.Context, cfg Config, all, plan bool) (removed []string, err error) {
	store := cfg.store()
	networks, err := store.Networks()
	if err != nil {
		return nil, err
	}
	for _, n := range networks {
		endpoints, err := store.Endpoints(n.Name)
		if err != nil {
			return removed, err
		}
		left := len(endpoints)
		for _, e := range endpoints {
			gone, err := isGone(ctx, cfg, e)
			if err != nil {
				return removed, err
			}
			if !gone {
				continue
			}
			if !plan {
				if _, err := Disconnect(ctx, cfg, n.Name, e.Container.QualifiedName()); err != nil {
					return removed, err
				}
			}
			left--
			removed = append(removed, e.label())
		}
		if left > 0 || !all {
			continue
		}
		if !plan {
			if _, err := Remove(ctx, cfg, n.Name, false); err != nil {
				return removed, err
			}
		}
		removed = append(removed, "network "+n.Name)
	}
	return removed, nil
}

// isGone reports whether an endpoint's container does not exist any more, even stopped.
func isGone(ctx context.Context, cfg Config, e *Endpoint) (bool, error) {
	if e.Container.Manager != "" {
		s, err := open(cfg)
		if err != nil {
			return false, err
		}
		defer s.close()
		gone, _, err := s.isForgotten(e)
		return gone, err
	}
	_, ns, err := cfg.Attach.Find(ctx, e.Container.QualifiedName())
	switch {
	case err == nil:
		return false, ns.Close()
	case errors.As(err, new(*find.NotFound)), errors.Is(err, netns.ErrNotFound), errors.Is(err, find.ErrGone):
		return true, nil
	case errors.As(err, new(*find.NotRunning)):
		return false, nil
	}
	return false, err
}
