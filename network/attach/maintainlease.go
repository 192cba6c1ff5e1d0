package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/network/announce"
	"cleat/network/dhcp"
	"cleat/network/journal"
	"cleat/network/resolvconf"
	"cleat/network/segment"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LeaseReport says what MaintainLease did and when to call it again.
type LeaseReport struct {
	Done       string        // "": nothing
	Next       time.Duration // math.MaxInt64: never
	NewAddress bool          // the link has another address, which may be announced once more
	Waiting    bool          // the last attempt had no answer, and the next is not due yet
	Incomplete bool          // parts of the lease could not be configured; every call tries again, even before Next
}

const never = time.Duration(math.MaxInt64)

// MaintainLease does what is due about an attachment's lease. It renews the lease and applies
// what the server has changed. If the lease has expired, or a server forbids its address, it
// removes the address at once (RFC 2131 section 4.4.5) and gets another lease; the link stays.
// It restores an address that somebody has removed. After an error, the next call tries the
// same again; Next may then be 0 or never, and the caller chooses when to call. An attachment
// without a lease needs nothing.
func MaintainLease(ctx context.Context, cfg Config, id string) (LeaseReport, error) {
	l, err := readLease(cfg.Store.leasePath(id))
	if l == nil || err != nil {
		return LeaseReport{Next: never}, err
	}
	m, err := newMaintainer(cfg, id)
	if err != nil {
		return LeaseReport{Next: never}, err
	}
	defer m.close()
	m.pending = l.Pending
	return m.maintain(ctx, &l.Lease)
}

type maintainer struct {
	*session
	att     *Attachment
	undo    *undoLease
	cont    *namespace
	at      segment.Link
	pending leaseChanges // as in the lease's file
}

func newMaintainer(cfg Config, id string) (*maintainer, error) {
	all, err := readJournal(cfg.Store.liveJournal(id))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all.undos, func(one Undo) bool { return one.Lease != nil })
	if i < 0 || all.Attachment == nil {
		return nil, fmt.Errorf("maintain lease of %s: it is not in the journal", cfg.Store.label(id))
	}
	s, err := newSession(cfg.Store, cfg.Checkpoint)
	if err != nil {
		return nil, err
	}
	m := &maintainer{session: s, att: all.Attachment, undo: all.undos[i].Lease}
	if m.at, m.cont, err = m.undo.location(s); err == nil && m.cont == nil {
		err = errors.New("the link is gone")
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("maintain lease of %s: %w", m.att.label(), err)
	}
	return m, nil
}

func (m *maintainer) maintain(ctx context.Context, l *dhcp.Lease) (LeaseReport, error) {
	now, err := dhcp.Now()
	if err != nil {
		return LeaseReport{Next: never}, err
	}
	step := l.Next(now)
	if step.Action == dhcp.CallAcquire && step.Delay == 0 {
		return m.reacquire(ctx, l, "the old one had expired")
	}
	_, exists, err := segment.Address(m.at, l.Address.Addr())
	if err != nil {
		return LeaseReport{Next: never}, err
	}
	if !exists {
		err := m.withJournal(ctx, func(r *run) error { return m.apply(r, nil, l) })
		return LeaseReport{Done: fmt.Sprintf("restored the address %s, which somebody had removed", l.Address), NewAddress: true, Incomplete: m.pending.any()}, err
	}
	if step.Delay == 0 {
		return m.renew(ctx, l, step.Action)
	}
	if !m.pending.any() {
		return LeaseReport{Next: step.Delay, Waiting: l.LastAttempt != dhcp.Stamp{}}, nil
	}
	done := ""
	if err = m.withJournal(ctx, func(r *run) error { return m.apply(r, l, l) }); err == nil {
		done = "applied pending changes of the lease"
	}
	return LeaseReport{Done: done, Next: step.Delay, Incomplete: m.pending.any()}, err
}

// renew renews the lease, applies what has changed and only then saves the lease. If the
// process is killed before that, the next one does both again.
func (m *maintainer) renew(ctx context.Context, l *dhcp.Lease, action dhcp.Action) (LeaseReport, error) {
	before, request := *l, dhcp.Renew
	if action == dhcp.CallRebind {
		request = dhcp.Rebind
	}
	err := request(ctx, m.at, l)
	if errors.Is(err, dhcp.ErrNak) || errors.Is(err, dhcp.ErrExpired) {
		return m.reacquire(ctx, &before, err.Error())
	}
	done := ""
	if err == nil {
		done = fmt.Sprintf("renewed the lease of %s%s", l.Address, changedText(&before, l))
	}
	err = errors.Join(err, m.withJournal(ctx, func(r *run) error {
		if done != "" {
			return m.apply(r, &before, l)
		}
		return errors.Join(m.save(l), r.checkpoint())
	}))
	now, clockErr := dhcp.Now()
	if clockErr != nil {
		return LeaseReport{Next: never}, errors.Join(err, clockErr)
	}
	return LeaseReport{Done: done, Next: l.Next(now).Delay, Incomplete: m.pending.any()}, err
}

// changedText lists what a server has changed; "" if nothing.
func changedText(before, now *dhcp.Lease) string {
	var changed []string
	for _, part := range []struct {
		name string
		same bool
	}{{"prefix length", before.Address == now.Address}, {"MTU", before.MTU == now.MTU},
		{"routes", slices.Equal(before.Routes, now.Routes)}, {"name servers", slices.Equal(before.DNS, now.DNS)}} {
		if !part.same {
			changed = append(changed, part.name)
		}
	}
	if len(changed) == 0 {
		return ""
	}
	return ", with new " + strings.Join(changed, ", ")
}

// reacquire removes the lease's routes and address from the link, and the host's route to it, and
// gets another lease.
func (m *maintainer) reacquire(ctx context.Context, l *dhcp.Lease, reason string) (LeaseReport, error) {
	old := *l
	l.Expires = l.Obtained.Wall // from now on it counts as expired
	if err := m.withJournal(ctx, func(r *run) error {
		if err := m.save(l); err != nil {
			return err
		}
		if err := r.checkpoint(); err != nil {
			return err
		}
		return errors.Join(m.removeRoutes(old.Routes), m.removeAddress(old.Address), m.undo.removeShimRoute(&undoer{session: m.session}, &old))
	}); err != nil {
		return LeaseReport{}, err
	}
	// Until the new lease is configured, its file says that it has expired, so that the next
	// process asks again.
	save := func(granted *dhcp.Lease) error {
		unconfirmed := l
		if granted != nil {
			g := *granted
			g.Obtained, g.Expires = l.Obtained, l.Expires
			unconfirmed = &g
		}
		return m.withJournal(ctx, func(r *run) error { return r.recordLease(m.undo.Path, unconfirmed) })
	}
	lease, err := dhcp.Acquire(ctx, m.at, dhcp.Config{Client: l.Client, Requested: l.Address.Addr(), Save: save})
	if err != nil {
		return LeaseReport{}, fmt.Errorf("%s: %w", reason, err)
	}
	applyErr := m.withJournal(ctx, func(r *run) error { return m.apply(r, nil, lease) })
	if applyErr != nil && !m.pending.any() || m.pending.Address {
		return LeaseReport{}, applyErr
	}
	announceCtx, cancel := context.WithTimeout(ctx, announceWithin)
	defer cancel()
	_ = announce.Address(announceCtx, m.at, lease.Address.Addr()) // neighbours may be unreachable
	now, err := dhcp.Now()
	return LeaseReport{Done: fmt.Sprintf("got a new lease of %s: %s", lease.Address, reason), Next: lease.Next(now).Delay, NewAddress: true, Incomplete: m.pending.any()}, errors.Join(applyErr, err)
}

// withJournal changes a complete attachment: f appends to its journal. The lock keeps others
// from detaching it. The error is fs.ErrNotExist if it has been detached.
func (m *maintainer) withJournal(ctx context.Context, f func(*run) error) error {
	unlock, err := m.store.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if path := m.store.operationOn(m.att.ID); path != "" {
		return busyError(path)
	}
	j, err := journal.Open(m.store.liveJournal(m.att.ID))
	if err != nil {
		return err
	}
	r := &run{session: m.session, ctx: ctx, journal: j, att: m.att, cont: m.cont, linkIndex: m.undo.Index}
	return errors.Join(f(r), j.Close())
}

// apply configures lease l, which replaces old, and saves it together with the changes that
// failed. old is nil if nothing is configured. If the process is killed before that, the file
// is unchanged.
func (m *maintainer) apply(r *run, old, l *dhcp.Lease) error {
	pending, err := m.makeChanges(r, m.pending.after(old, l, m.undo.MTU), l)
	if errors.Is(err, ErrKilled) {
		return err
	}
	m.pending = pending
	return errors.Join(err, m.save(l), r.checkpoint())
}

func (m *maintainer) save(l *dhcp.Lease) error {
	return statedir.WriteJSON(m.undo.Path, leaseFile{*l, m.pending})
}

// makeChanges makes changes to the link and returns those that failed.
func (m *maintainer) makeChanges(r *run, c leaseChanges, l *dhcp.Lease) (failed leaseChanges, err error) {
	var errs []error
	try := func(f func() error) (ok bool) {
		if len(errs) > 0 && errors.Is(errs[len(errs)-1], ErrKilled) {
			return false
		}
		err := f()
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	failed.MTU = c.MTU && !try(func() error { return m.setMTU(r, l) })
	failed.Address = c.Address && !try(func() error { return m.addAddress(r, l) })
	for _, old := range c.OldAddresses { // after the new one is added, so that the link always has an address
		if failed.Address || !try(func() error { return m.removeAddress(old) }) {
			failed.OldAddresses = append(failed.OldAddresses, old)
		}
	}
	for _, route := range c.Routes {
		if !try(func() error { return m.addRoute(r, c.OldRoutes, route) }) {
			failed.Routes = append(failed.Routes, route)
		}
	}
	for _, old := range c.OldRoutes {
		replaced := hasRouteTo(l.Routes, old.To)
		if replaced && hasRouteTo(failed.Routes, old.To) || !replaced && !try(func() error { return m.removeRoutes([]dhcp.Route{old}) }) {
			failed.OldRoutes = append(failed.OldRoutes, old)
		}
	}
	failed.OwnRoutes = c.OwnRoutes && !try(func() error { return m.addOwnRoutes(r) })
	failed.DNS = c.DNS && !try(func() error { return m.writeDNS(r, l) })
	failed.Shim = c.Shim && !try(func() error { return m.addShimRoute(r, l) })
	return failed, errors.Join(errs...)
}

func (m *maintainer) setMTU(r *run, l *dhcp.Lease) error {
	if m.att.Spec.MTU != 0 {
		return nil
	}
	nl, err := m.cont.LinkByIndex(m.undo.Index)
	if err != nil {
		return fmt.Errorf("find link %q in the container: %w", m.att.Spec.Name, err)
	}
	mtu := m.att.Spec.leaseMTU(l, cmp.Or(m.undo.MTU, nl.Attrs().MTU))
	if nl.Attrs().MTU == mtu {
		return nil
	}
	return r.doSteps([]Step{SetLink{Link: m.att.Spec.Name, MTU: mtu}})
}

func (m *maintainer) addAddress(r *run, l *dhcp.Lease) error {
	err := r.doSteps([]Step{Address{Link: m.att.Spec.Name, Prefix: l.Address}})
	if errors.As(err, new(*TakenError)) {
		return nil // the link has it
	}
	return err
}

// addRoute adds a route of the lease. It replaces an old route to the same destination in one
// step.
func (m *maintainer) addRoute(r *run, old []dhcp.Route, route dhcp.Route) error {
	exists, err := m.hasRoute(route)
	if err != nil || exists {
		return err
	}
	if hasRouteTo(old, route.To) {
		t := m.routeRecord(route)
		if err := r.record(Undo{Route: &undoRoute{NS: m.cont.ref, Route: t}}); err != nil {
			return err
		}
		if err := m.cont.RouteReplace(t.netlink()); err != nil {
			return fmt.Errorf("route %s through %s: %w", route.To, m.att.Spec.Name, err)
		}
		return r.checkpoint()
	}
	steps, err := r.leaseRouteSteps(m.att.Spec.Name, route)
	if err != nil {
		return err
	}
	return r.doSteps(steps)
}

// addOwnRoutes adds the IPv4 routes of the spec, which the kernel has removed with the last
// address.
func (m *maintainer) addOwnRoutes(r *run) error {
	routes := slices.Clone(m.att.Spec.Routes)
	for _, g := range m.att.Spec.Gateways {
		routes = append(routes, Route{To: defaultPrefix(familyOf(g)), Via: g})
	}
	var errs []error
	for _, route := range routes {
		if route.To.Addr().Is6() {
			continue
		}
		err := m.addRoute(r, nil, dhcp.Route{To: route.To, Via: route.Via})
		if errs = append(errs, err); errors.Is(err, ErrKilled) {
			break
		}
	}
	return errors.Join(errs...)
}

func (m *maintainer) writeDNS(r *run, l *dhcp.Lease) error {
	if len(l.DNS) == 0 || len(m.att.Spec.DNS) > 0 {
		return nil
	}
	path, err := m.att.Container.ResolvConf()
	if err != nil {
		return nil // a note of the attach says so
	}
	f, err := resolvconf.Open(path, m.cont.ns)
	if err != nil {
		return fmt.Errorf("write name servers: %w", err)
	}
	edit, err := f.Plan(l.DNS)
	f.Close()
	if err == nil && edit.IsNoop() {
		return nil
	}
	return r.doSteps([]Step{WriteDNS{Path: path, Servers: l.DNS}})
}

// addShimRoute routes the host's packets for the address through the shim.
func (m *maintainer) addShimRoute(r *run, l *dhcp.Lease) error {
	if m.undo.Shim == "" {
		return nil
	}
	parent, err := r.host.LinkByIndex(m.undo.ParentIndex)
	if err != nil {
		return fmt.Errorf("find the parent of %q: %w", m.att.Spec.Name, err)
	}
	route, err := r.leaseShimRoute(m.undo.Shim, parent.Attrs().Name, l)
	if err != nil || route == nil {
		return err
	}
	exists, err := route.exists(r.host)
	if err != nil || exists {
		return err
	}
	return r.doSteps([]Step{*route})
}

func (m *maintainer) removeRoutes(routes []dhcp.Route) error {
	var errs []error
	for _, route := range routes {
		err := m.cont.RouteDel(m.routeRecord(route).netlink())
		if err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", route.To, err))
		}
	}
	return errors.Join(errs...)
}

func (m *maintainer) removeAddress(p netip.Prefix) error {
	return (&undoAddress{NS: m.undo.NS, Index: m.undo.Index, Prefix: p}).undo(&undoer{session: m.session})
}

func (m *maintainer) routeRecord(route dhcp.Route) routeRecord {
	return AddRoute{Route: Route{To: route.To, Via: route.Via}, OnLink: route.OnLink}.routeRecord(m.undo.Index)
}

func (m *maintainer) hasRoute(route dhcp.Route) (bool, error) {
	filter := &netlink.Route{LinkIndex: m.undo.Index, Table: unix.RT_TABLE_MAIN}
	all, err := link.Dump(func() ([]netlink.Route, error) {
		return m.cont.RouteListFiltered(unix.AF_INET, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return false, fmt.Errorf("list routes of %s: %w", m.cont.ns, err)
	}
	return slices.ContainsFunc(all, func(r netlink.Route) bool {
		t, ok := newRouteRecord(r, unix.AF_INET)
		return ok && t.To == route.To && t.Via == route.Via
	}), nil
}

// AnnounceAgain announces an attachment's addresses a second time. RFC 5227 section 2.3
// requires two announcements, 2 s apart, because one may be lost; attaching does not wait for
// the second. On links without neighbours AnnounceAgain does nothing.
func AnnounceAgain(ctx context.Context, store *Store, a *Attachment) error {
	if !hasNeighbours(a.Spec.Kind, a.Spec.mode()) {
		return nil
	}
	all, err := readJournal(store.liveJournal(a.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || all.outcome == nil {
		return err
	}
	s, err := newSession(store, nil)
	if err != nil {
		return err
	}
	defer s.close()
	cont, err := s.namespace(all.Container)
	if cont == nil {
		return err
	}
	addresses := a.Spec.Addresses
	if l, err := readLease(store.leasePath(a.ID)); err == nil && l != nil {
		addresses = append(slices.Clip(addresses), l.Address)
	}
	at := segment.Link{NS: cont.ns, Index: all.outcome.Index}
	var existing []netip.Addr // somebody may have removed others
	for _, p := range addresses {
		if _, exists, err := segment.Address(at, p.Addr()); err == nil && exists {
			existing = append(existing, p.Addr())
		}
	}
	return announce.Address(ctx, at, existing...)
}
