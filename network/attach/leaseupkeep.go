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
	"time"

	"cleat/network/announce"
	"cleat/network/dhcp"
	"cleat/network/journal"
	"cleat/network/resolvconf"
	"cleat/network/segment"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LeaseReport is what MaintainLease did, and when it wants to be called again.
type LeaseReport struct {
	Done       string        // "": there was nothing to do
	Next       time.Duration // never: math.MaxInt64
	NewAddress bool          // the link has an address that it had not before: neighbours may be told once more
	// Waiting: the last attempt had no answer, and it is not yet time for the next.
	Waiting bool
	// Unset: not all that the lease says could be set. It is tried again whenever MaintainLease is
	// called, which may be earlier than In.
	Incomplete bool
}

const never = time.Duration(math.MaxInt64)

// MaintainLease does what is due about an attachment's lease: has it extended, and sets what
// the server says otherwise than before. Of a lease that is over, or whose address a
// server forbids, the address goes at once (RFC 2131 section 4.4.5), and another lease
// is asked for; the link stays. An address that somebody removed is put back. The
// error leaves the lease to be extended, or asked for, when In has passed. What has no
// lease wants nothing, ever.
func MaintainLease(ctx context.Context, cfg Config, id string) (LeaseReport, error) {
	l, err := readLease(cfg.Store.leasePath(id))
	if l == nil || err != nil {
		return LeaseReport{Next: never}, err
	}
	t, err := newMaintainer(cfg, id)
	if err != nil {
		return LeaseReport{Next: never}, err
	}
	defer t.close()
	t.pending = l.Pending
	return t.run(ctx, &l.Lease)
}

// tenancy is a lease that is being tended.
type maintainer struct {
	u     *undoer
	id    string
	att   *Attachment
	lease *undoLease
	cont  *namespace
	at    segment.Link

	pending leaseChanges // as it is on file
}

func newMaintainer(cfg Config, id string) (*maintainer, error) {
	records, err := journal.Read(cfg.Store.liveJournal(id))
	if err != nil {
		return nil, err
	}
	first, undos, _, err := parseJournal(records)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(undos, func(one Undo) bool { return one.Lease != nil })
	if i < 0 || first.Attachment == nil {
		return nil, fmt.Errorf("extend lease of %s: its journal has none", cfg.Store.label(id))
	}
	host, err := hostNamespace()
	if err != nil {
		return nil, err
	}
	t := &maintainer{u: newUndoer(cfg.Store, host, cfg.testHook), id: id, att: first.Attachment, lease: undos[i].Lease}
	if t.cont, err = t.u.namespace(t.lease.NS); err == nil {
		t.at, err = t.lease.location(t.u)
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("extend lease of %s: %w", t.att.label(), err)
	}
	return t, nil
}

func (t *maintainer) close() {
	t.u.close()
	t.u.host.close()
}

func (t *maintainer) run(ctx context.Context, l *dhcp.Lease) (LeaseReport, error) {
	now, err := dhcp.Now()
	if err != nil {
		return LeaseReport{Next: never}, err
	}
	step := l.Next(now)
	if step.Action == dhcp.CallAcquire && step.In == 0 {
		return t.reacquire(ctx, l, "its lease was over")
	}
	_, there, err := segment.Address(t.at, l.Address.Addr())
	if err != nil {
		return LeaseReport{Next: never}, err
	}
	if !there {
		err := t.withJournal(ctx, func(r *run) error { return t.apply(r, nil, l) })
		return LeaseReport{Done: fmt.Sprintf("put %s back, which somebody had removed", l.Address), NewAddress: true, Incomplete: t.pending.any()}, err
	}
	switch {
	case step.In == 0:
		return t.extend(ctx, l, step.Action)
	case t.pending.any():
		did := "set what its lease says"
		err := t.withJournal(ctx, func(r *run) error { return t.apply(r, l, l) })
		if err != nil {
			did = ""
		}
		return LeaseReport{Done: did, Next: step.In, Incomplete: t.pending.any()}, err
	}
	return LeaseReport{Next: step.In, Waiting: l.Tried != dhcp.Stamp{}}, nil
}

// extend asks for more time, sets what is new, and only then keeps the lease: whoever
// is killed in between, or who comes after him, does both once more.
func (t *maintainer) extend(ctx context.Context, l *dhcp.Lease, how dhcp.Action) (LeaseReport, error) {
	before, ask := *l, dhcp.Renew
	if how == dhcp.CallRebind {
		ask = dhcp.Rebind
	}
	err := ask(ctx, t.at, l)
	if errors.Is(err, dhcp.ErrNak) || errors.Is(err, dhcp.ErrExpired) {
		return t.reacquire(ctx, &before, err.Error())
	}
	did := ""
	if err == nil {
		did = fmt.Sprintf("extended its lease of %s%s", l.Address, newsOf(&before, l))
	}
	err = errors.Join(err, t.withJournal(ctx, func(r *run) error {
		if did != "" {
			return t.apply(r, &before, l)
		}
		return errors.Join(t.save(l), r.checkpoint())
	}))
	now, clockErr := dhcp.Now()
	if clockErr != nil {
		return LeaseReport{Next: never}, errors.Join(err, clockErr)
	}
	return LeaseReport{Done: did, Next: l.Next(now).In, Incomplete: t.pending.any()}, err
}

// newsOf says what a server has changed; "": nothing.
func newsOf(before, now *dhcp.Lease) string {
	text := ""
	for _, one := range []struct {
		what string
		same bool
	}{{"length of its network", before.Address == now.Address}, {"MTU", before.MTU == now.MTU},
		{"routes", slices.Equal(before.Routes, now.Routes)}, {"name servers", slices.Equal(before.DNS, now.DNS)}} {
		if !one.same {
			text += ", with other " + one.what
		}
	}
	return text
}

// anew takes the address off the link and asks for another; the link stays what it is.
func (t *maintainer) reacquire(ctx context.Context, l *dhcp.Lease, why string) (LeaseReport, error) {
	old := *l
	l.Expires = l.Got.Wall // so that it counts as over, whatever comes in between
	if err := t.withJournal(ctx, func(r *run) error {
		if err := t.save(l); err != nil {
			return err
		}
		if err := r.checkpoint(); err != nil {
			return err
		}
		return t.drop(&old)
	}); err != nil {
		return LeaseReport{}, err
	}
	got, err := dhcp.Acquire(ctx, t.at, dhcp.Config{Client: l.Client, Check: announce.Fast(), Wish: l.Address.Addr(), Keep: func(claim *dhcp.Lease) error {
		return t.withJournal(ctx, func(r *run) error { return r.keepLease(t.lease.Path, unconfirmed(claim, l)) })
	}})
	if err != nil {
		return LeaseReport{}, fmt.Errorf("%s: %w", why, err)
	}
	unset := t.withJournal(ctx, func(r *run) error { return t.apply(r, nil, got) })
	if unset != nil && !t.pending.any() || t.pending.Address {
		return LeaseReport{}, unset
	}
	t.announce(ctx, got.Address)
	now, err := dhcp.Now()
	return LeaseReport{Done: fmt.Sprintf("got a lease of %s: %s", got.Address, why), Next: got.Next(now).In, NewAddress: true, Incomplete: t.pending.any()}, errors.Join(unset, err)
}

// claimed is what is kept of an address that a server may count as ours: as long as it is
// not on the link with all that comes with it, it counts as over, so that whoever comes next
// asks again. nil: there is none, but the one that is over.
func unconfirmed(claim, over *dhcp.Lease) *dhcp.Lease {
	if claim == nil {
		return over
	}
	c := *claim
	c.Got, c.Expires = over.Got, over.Expires
	return &c
}

// tell announces an address; that nobody hears is no reason for anything.
func (t *maintainer) announce(ctx context.Context, p netip.Prefix) {
	ctx, cancel := context.WithTimeout(ctx, announceWithin)
	defer cancel()
	_ = announce.Address(ctx, t.at, announce.Repeat{}, p)
}

// change does something to a complete attachment, with a journal that goes on where it
// ended. Nobody detaches it meanwhile; fs.ErrNotExist when somebody has.
func (t *maintainer) withJournal(ctx context.Context, f func(*run) error) error {
	s := t.u.store
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if path := s.operationOn(t.id); path != "" {
		return busyError(path)
	}
	j, err := journal.Open(s.liveJournal(t.id))
	if err != nil {
		return err
	}
	r := &run{ctx: ctx, store: s, journal: j, att: t.att, host: t.u.host, cont: t.cont, testHook: t.u.testHook, linkIndex: t.lease.Index}
	return errors.Join(f(r), j.Close())
}

// adopt sets a lease in the place of old, nil: of anything, and then keeps it, with what
// could not be set: who is killed in between leaves the file as it was.
func (t *maintainer) apply(r *run, old, l *dhcp.Lease) error {
	left, failed := t.setChanges(r, t.pending.after(old, l, t.lease.MTU), l)
	if errors.Is(failed, errKilled) {
		return failed
	}
	t.pending = left
	return errors.Join(failed, t.save(l), r.checkpoint())
}

// save keeps a lease, with what is unset of it.
func (t *maintainer) save(l *dhcp.Lease) error {
	return saveLease(t.lease.Path, &leaseFile{*l, t.pending})
}

// set has the link as a lease says where it is not. What fails is said, and left.
func (t *maintainer) setChanges(r *run, what leaseChanges, l *dhcp.Lease) (left leaseChanges, err error) {
	var errs []error
	do := func(f func() error) bool { // false: it is not done
		if len(errs) > 0 && errors.Is(errs[len(errs)-1], errKilled) {
			return false
		}
		err := f()
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	left.MTU = what.MTU && !do(func() error { return t.setMTU(r, l) })
	left.Address = what.Address && !do(func() error { return t.setAddress(r, l) })
	for _, old := range what.OldAddresses { // after the new one is there, so that there is always one
		if left.Address || !do(func() error { return t.dropAddress(old) }) {
			left.OldAddresses = append(left.OldAddresses, old)
		}
	}
	for _, route := range what.Routes {
		if !do(func() error { return t.setRoute(r, what.OldRoutes, route) }) {
			left.Routes = append(left.Routes, route)
		}
	}
	for _, old := range what.OldRoutes {
		replaced := hasRouteTo(l.Routes, old.To)
		if replaced && hasRouteTo(left.Routes, old.To) || !replaced && !do(func() error { return t.dropRoutes([]dhcp.Route{old}) }) {
			left.OldRoutes = append(left.OldRoutes, old)
		}
	}
	left.OwnRoutes = what.OwnRoutes && !do(func() error { return t.wantedRoutes(r) })
	left.DNS = what.DNS && !do(func() error { return t.setDNS(r, l) })
	left.Shim = what.Shim && !do(func() error { return t.setShim(r, l) })
	return left, errors.Join(errs...)
}

func (t *maintainer) setMTU(r *run, l *dhcp.Lease) error {
	if t.att.Spec.MTU != 0 {
		return nil
	}
	nl, err := t.cont.LinkByIndex(t.lease.Index)
	if err != nil {
		return fmt.Errorf("find %q in the container: %w", t.att.Spec.Name, err)
	}
	want := t.att.Spec.leaseMTU(l, cmp.Or(t.lease.MTU, nl.Attrs().MTU))
	if nl.Attrs().MTU == want {
		return nil
	}
	return t.do(r, SetLink{Link: t.att.Spec.Name, MTU: want})
}

func (t *maintainer) setAddress(r *run, l *dhcp.Lease) error {
	err := t.do(r, Address{Link: t.att.Spec.Name, Prefix: l.Address})
	if errors.As(err, new(*TakenError)) {
		return nil // it is there
	}
	return err
}

// setRoute sets one of a lease's routes, in the place of an old one to the same network
// at once.
func (t *maintainer) setRoute(r *run, old []dhcp.Route, route dhcp.Route) error {
	there, err := t.hasRoute(route)
	if err != nil || there {
		return err
	}
	if hasRouteTo(old, route.To) {
		text := t.routeRecord(route)
		if err := r.record(Undo{Route: &undoRoute{NS: t.cont.ref, Route: text}}); err != nil {
			return err
		}
		if err := t.cont.RouteReplace(text.netlink()); err != nil {
			return fmt.Errorf("route %s by %s: %w", route.To, t.att.Spec.Name, err)
		}
		return r.checkpoint()
	}
	steps, err := leaseRoute(r, t.att.Spec.Name, route)
	if err != nil {
		return err
	}
	return t.do(r, steps...)
}

// wantedRoutes sets the IPv4 routes that were wanted besides the lease's, and that the
// kernel took away with the last address.
func (t *maintainer) wantedRoutes(r *run) error {
	routes := slices.Clone(t.att.Spec.Routes)
	for _, g := range t.att.Spec.Gateways {
		routes = append(routes, Route{To: defaultPrefix(familyOf(g)), Via: g})
	}
	var errs []error
	for _, route := range routes {
		if route.To.Addr().Is6() {
			continue
		}
		err := t.setRoute(r, nil, dhcp.Route{To: route.To, Via: route.Via})
		if errs = append(errs, err); errors.Is(err, errKilled) {
			break
		}
	}
	return errors.Join(errs...)
}

func (t *maintainer) setDNS(r *run, l *dhcp.Lease) error {
	if len(l.DNS) == 0 || len(t.att.Spec.DNS) > 0 {
		return nil
	}
	path, err := t.att.Container.resolvConf()
	if err != nil {
		return nil // which was said when it was attached
	}
	f, err := resolvconf.Open(path, t.cont.ns)
	if err != nil {
		return fmt.Errorf("write name servers: %w", err)
	}
	edit, err := f.Plan(l.DNS)
	f.Close()
	if err == nil && edit.IsNoop() {
		return nil
	}
	return t.do(r, WriteDNS{Path: path, Servers: l.DNS})
}

// setShim has the host's packets for the address go by its shim.
func (t *maintainer) setShim(r *run, l *dhcp.Lease) error {
	if t.lease.Shim == "" {
		return nil
	}
	parent, err := r.host.LinkByIndex(t.lease.ParentIndex)
	if err != nil {
		return fmt.Errorf("find the device below %q: %w", t.att.Spec.Name, err)
	}
	step, err := shimRouteFor(r, t.lease.Shim, parent.Attrs().Name, l)
	if err != nil || step == nil {
		return err
	}
	there, err := step.exists(r.host)
	if err != nil || there {
		return err
	}
	return t.do(r, *step)
}

// do takes steps.
func (t *maintainer) do(r *run, steps ...Step) error { return r.doSteps(steps) }

// drop takes a lease's routes and address off the link, and what leads to it off the host.
func (t *maintainer) drop(l *dhcp.Lease) error {
	return errors.Join(t.dropRoutes(l.Routes), t.dropAddress(l.Address), t.lease.dropShim(t.u, l))
}

func (t *maintainer) dropRoutes(routes []dhcp.Route) error {
	var errs []error
	for _, route := range routes {
		err := t.cont.RouteDel(t.routeRecord(route).netlink())
		if err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", route.To, err))
		}
	}
	return errors.Join(errs...)
}

func (t *maintainer) dropAddress(p netip.Prefix) error {
	return (&undoAddress{NS: t.lease.NS, Index: t.lease.Index, Prefix: p.String()}).undo(t.u)
}

// routeText is a route of a lease's as the kernel has it.
func (t *maintainer) routeRecord(route dhcp.Route) routeRecord {
	return AddRoute{Route: Route{To: route.To, Via: route.Via}, OnLink: route.OnLink}.record(t.lease.Index)
}

// hasRoute tells whether the link has a route.
func (t *maintainer) hasRoute(route dhcp.Route) (bool, error) {
	at := &netlink.Route{LinkIndex: t.lease.Index, Table: unix.RT_TABLE_MAIN}
	all, err := t.cont.RouteListFiltered(unix.AF_INET, at, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return false, fmt.Errorf("list routes of %s: %w", t.cont.ns, err)
	}
	return slices.ContainsFunc(all, func(r netlink.Route) bool {
		text, ok := recordRoute(r, unix.AF_INET)
		return ok && text.To == route.To && text.Via == route.Via
	}), nil
}

// AnnounceAgain announces an attachment's addresses once more: RFC 5227 (section 2.3) wants
// two announcements, 2 s apart, since one may get lost; attaching does not wait for the
// second. On links without neighbours it does nothing.
func AnnounceAgain(ctx context.Context, store *Store, a *Attachment) error {
	w := a.Spec
	mode := w.Mode
	if all := modesOf(w.Kind); mode == "" && len(all) > 0 {
		mode = all[0]
	}
	if !hasNeighbours(w.Kind, mode) {
		return nil
	}
	records, err := journal.Read(store.liveJournal(a.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	first, _, last, err := parseJournal(records)
	if err != nil || last == nil {
		return err
	}
	host, err := hostNamespace()
	if err != nil {
		return err
	}
	defer host.close()
	u := newUndoer(store, host, nil)
	defer u.close()
	cont, err := u.namespace(first.Container)
	if err != nil {
		return err
	}
	all := slices.Clone(w.Addresses)
	if l, err := readLease(store.leasePath(a.ID)); err == nil && l != nil {
		all = append(all, l.Address)
	}
	at := segment.Link{NS: cont.ns, Index: last.Index}
	all = slices.DeleteFunc(all, func(p netip.Prefix) bool { // somebody may have removed it
		_, there, err := segment.Address(at, p.Addr())
		return err != nil || !there
	})
	return announce.Address(ctx, at, announce.Repeat{}, all...)
}
