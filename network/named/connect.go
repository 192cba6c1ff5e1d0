package named

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
)

// Connect connects a container to a network. On error everything is as before. The error is
// an *attach.SpecError for a mistake in c, an *attach.TakenError or a *PortTakenError if
// something is in use, and an *ipam.FullError if the network has no address left.
func Connect(ctx context.Context, cfg Config, network, ref string, c Connection) (*Result, error) {
	return whenFree(ctx, cfg, func() (*Result, error) {
		return connect(ctx, cfg, network, c, func() (attach.Container, *netns.NS, error) { return cfg.Attach.Find(ctx, ref) })
	})
}

func connect(ctx context.Context, cfg Config, network string, c Connection, find func() (attach.Container, *netns.NS, error)) (*Result, error) {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := n.checkConnection(&c); err != nil {
		return nil, err
	}
	if cfg.Attach.Background != nil {
		answered := make(chan struct{})
		s.answered = answered
		defer func() { time.AfterFunc(answerWithin, func() { close(answered) }) }()
	}
	container, ns, err := find()
	if err != nil {
		return nil, err
	}
	e := &Endpoint{Version: endpointVersion, Network: network, Container: container, Created: time.Now().UTC().Truncate(time.Microsecond), Wanted: c}
	if e.Names, err = containerNames(container, c.Aliases); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	o, err := s.begin(ctx, operationName(network, endpointID(container)), record{Network: network, Endpoint: e})
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	// Only now a command that removes the network waits for this one (networkAbsent).
	if err := s.stillThere(n); err != nil {
		return nil, errors.Join(err, ns.Close(), o.end())
	}
	got, err := s.attach(ctx, o, n, e, ns)
	undo := s.free
	if errors.As(err, new(*ConnectedError)) {
		return nil, errors.Join(err, o.end())
	}
	if err == nil {
		err = s.show(ctx, n, e)
		undo = s.settleUnknown
	}
	if err != nil {
		if gone := s.stillThere(n); gone != nil && !errors.Is(err, attach.ErrKilled) {
			err = gone // and not what was the first to be missing
		}
		return nil, abort(ctx, o, undo, e, err)
	}
	r := record{Endpoint: e, ForgetPorts: true}
	r.Forget = s.reused(n, e) && !s.Files.takeForgotten(e.Addresses)
	return &Result{Network: n, Endpoint: e, Link: got, Notes: s.notes}, s.endConnected(o, n, r)
}

// answerWithin is about the time from the end of connect until the engine has got its answer. What a bridge
// copies to 1,000 ports would delay that by 3 ms.
const answerWithin = 2 * time.Millisecond

// reused reports whether somebody may have had one of an endpoint's addresses before.
func (s *session) reused(n *Network, e *Endpoint) bool {
	return slices.ContainsFunc(e.Addresses, s.pool(n).Reused)
}

// stillThere returns a *NoNetworkError if a network was removed, even if there is another one of its
// name by now.
func (s *session) stillThere(n *Network) error {
	now, err := s.store.Network(n.Name)
	if err == nil && (now.ID != n.ID || !now.Created.Equal(n.Created)) {
		err = &NoNetworkError{Name: n.Name}
	}
	return err
}

// attach claims what the endpoint needs, and attaches the link. It closes ns. On error free undoes it; after a
// *ConnectedError there is nothing to undo.
func (s *session) attach(ctx context.Context, o *operation, n *Network, e *Endpoint, ns *netns.NS) (*attach.Result, error) {
	spec, err := s.prepareLink(ctx, o, n, e, ns)
	if err == nil {
		err = s.checkpoint()
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	cfg := s.Attach
	cfg.Find = func(context.Context, string) (attach.Container, *netns.NS, error) { return e.Container, ns, nil }
	cfg.Unannounced = n.Driver == Bridge && !s.reused(n, e)
	cfg.AnnounceAfter = s.answered
	got, err := attach.Attach(ctx, cfg, e.Container.Ref, spec)
	if err != nil {
		return nil, parentError(err)
	}
	e.AttachmentID, e.Interface = got.Attachment.ID, got.Attachment.Spec.Name
	if got.Lease != nil {
		e.Addresses = append(e.Addresses, got.Lease.Address.Addr())
	}
	for _, note := range got.Notes {
		s.note("%s", note)
	}
	return got, s.checkpoint()
}

// show writes the endpoint's file, and puts what is not its link into the kernel. On error settleEndpoint
// undoes it.
func (s *session) show(ctx context.Context, n *Network, e *Endpoint) error {
	if err := s.store.writeEndpoint(e); err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	err := s.present(ctx, n, e, nil)
	if err == nil {
		// A program may have taken a port since the claim. It would receive nothing from now on.
		err = n.checkReserved(e)
	}
	if err != nil && !errors.Is(err, attach.ErrKilled) {
		err = errors.Join(err, statedir.Remove(s.store.endpointFile(n.Name, endpointID(e.Container)))) // so that settling removes the rest
	}
	return err
}

// prepareLink claims the endpoint's name, ports and addresses, and returns the link to attach. Addresses come
// last: one that was claimed in vain counts as reused.
func (s *session) prepareLink(ctx context.Context, o *operation, n *Network, e *Endpoint, ns *netns.NS) (attach.Spec, error) {
	if old, err := s.store.Endpoint(n.Name, endpointID(e.Container)); err == nil {
		return attach.Spec{}, &ConnectedError{Network: n.Name, Container: old.Container.ShortName()}
	}
	if err := s.claimName(n.Name, e); err != nil {
		return attach.Spec{}, err
	}
	if err := s.claimPorts(ctx, o, n, e, e); err != nil {
		return attach.Spec{}, err
	}
	if e.MAC = e.Wanted.MAC; e.MAC == (link.MAC{}) && n.Driver != IPvlan && n.Mode != "passthru" {
		e.MAC = attach.RandomMAC()
	}
	if err := s.bring(ctx, n, e); err != nil {
		return attach.Spec{}, err
	}
	if err := s.allocateSomewhere(ctx, o, n, e); err != nil {
		return attach.Spec{}, err
	}
	spec := n.attachSpec(e)
	if n.Driver == Routed && spec.MTU == 0 {
		l, err := link.Find(s.host, n.device())
		if err == nil {
			spec.MTU, err = l.MTU() // to find the uplink again would read all routes
		}
		if err != nil {
			return spec, err
		}
	}
	n.spanRoutes(e, &spec)
	if err := s.gateways(n, e, ns, &spec); err != nil {
		return spec, err
	}
	if !e.Wanted.NoDNS && !e.Wanted.engineRoutes() && !e.Container.HasResolvConf() {
		s.note("%s has no resolv.conf of its own, so it finds no names of network %s", e.Container.ShortName(), n.Name)
	}
	return spec, nil
}

// gateways makes the network's gateways those of the container. For an address family in which
// the container has a default route, they are only for packets with its addresses on the network.
func (s *session) gateways(n *Network, e *Endpoint, ns *netns.NS, spec *attach.Spec) error {
	if m := e.Wanted.Managed; m != nil && m.EngineRoutes {
		return nil
	}
	for _, a := range e.Addresses {
		if e.Wanted.handsOver() && !n.Internal { // the engine decides between several
			spec.Gateways = append(spec.Gateways, n.gatewayFor(a))
			continue
		}
		if n.NoDefaultRoute {
			continue
		}
		if n.RouteMetric != 0 {
			if err := n.gatewaysWithMetric(a, ns, spec); err != nil {
				return err
			}
			continue
		}
		if n.Internal { // another network's default route comes before one of its own
			spec.SourceGateways = append(spec.SourceGateways, n.gatewayFor(a))
			continue
		}
		has, err := attach.HasDefaultRoute(ns, family(a))
		if err != nil {
			return err
		}
		if has {
			s.note("%s keeps its default route for IPv%d", e.Container.ShortName(), family(a))
			spec.SourceGateways = append(spec.SourceGateways, n.gatewayFor(a))
			continue
		}
		spec.Gateways = append(spec.Gateways, n.gatewayFor(a))
	}
	return nil
}

// claimName claims the container's own name on the network. An alias may belong to several
// containers, but not be the own name of one. Engines may give a name to several of their containers.
func (s *session) claimName(network string, e *Endpoint) error {
	id := endpointID(e.Container)
	for i, name := range e.Names {
		path := s.store.nameClaim(network, name)
		if i == 0 {
			if err := os.Symlink(id, path); err == nil || !errors.Is(err, fs.ErrExist) {
				if err != nil {
					return fmt.Errorf("claim name %s: %w", name, err)
				}
				continue
			}
		}
		owner, err := os.Readlink(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && owner == id {
			continue
		}
		if err != nil {
			return fmt.Errorf("claim name %s: %w", name, err)
		}
		if other, err := s.store.Endpoint(network, owner); err == nil && e.Container.Manager != "" && other.Container.Manager == e.Container.Manager {
			continue
		}
		return &attach.TakenError{Resource: "name", Name: name, Owner: fmt.Sprintf("%s on network %s", s.containerOf(network, owner), network)}
	}
	return nil
}

// releaseNames removes the claims of an endpoint on names.
func (s *session) releaseNames(network string, e *Endpoint) error {
	for _, name := range e.Names {
		path := s.store.nameClaim(network, name)
		if owner, err := os.Readlink(path); err == nil && owner == endpointID(e.Container) {
			if err := statedir.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// containerOf returns the name of the container of an endpoint.
func (s *session) containerOf(network, id string) string {
	if e, err := s.store.Endpoint(network, id); err == nil {
		return e.Container.ShortName()
	}
	return id
}

// Disconnect removes a container from a network. Once it has begun, it is never rolled back:
// if it is interrupted, the next command completes it. The container is found as by Find, or by
// the name that it had.
func Disconnect(ctx context.Context, cfg Config, network, ref string) (*Result, error) {
	s, n, err := openNetwork(cfg, network)
	if err != nil {
		return nil, err
	}
	defer s.close()
	e, err := s.store.find(network, ref)
	if err != nil {
		return nil, err
	}
	if err := s.disconnect(ctx, e); err != nil {
		return nil, err
	}
	return &Result{Network: n, Endpoint: e, Notes: s.notes}, RemoveUnused(ctx, cfg, n.Name)
}

func (s *session) disconnect(ctx context.Context, e *Endpoint) error {
	o, err := s.begin(ctx, operationName(e.Network, endpointID(e.Container)), record{Network: e.Network, Endpoint: e})
	if err != nil {
		return err
	}
	return s.disconnectIn(ctx, o, e)
}

// disconnectIn disconnects an endpoint in an operation that has begun, and ends the operation.
func (s *session) disconnectIn(ctx context.Context, o *operation, e *Endpoint) error {
	if err := s.withdrawIn(ctx, o, e); err != nil {
		return err
	}
	return s.freeIn(ctx, o, e)
}

// withdrawIn removes an endpoint's file, and withdraws the endpoint. On error it gives the operation's
// journal up, so that the next command completes it.
func (s *session) withdrawIn(ctx context.Context, o *operation, e *Endpoint) error {
	err := statedir.Remove(s.store.endpointFile(e.Network, endpointID(e.Container)))
	if err == nil {
		err = s.checkpoint()
	}
	if err == nil {
		err = s.withdraw(ctx, e)
	}
	if err != nil {
		return errors.Join(err, o.giveUp())
	}
	return nil
}

// freeIn frees what an endpoint had, and ends the operation.
func (s *session) freeIn(ctx context.Context, o *operation, e *Endpoint) error {
	if err := s.free(ctx, e); err != nil {
		return errors.Join(err, o.giveUp())
	}
	return o.end()
}

// ConnectedError means that a container is on a network already.
type ConnectedError struct{ Network, Container string }

func (e *ConnectedError) Error() string {
	return e.Container + " is on network " + e.Network + " already"
}

// NotConnectedError means that a container is not on a network.
type NotConnectedError struct {
	Network, Container string   // Network is empty if the container is on none
	Containers         []string // that are on the network, or on any
}

func (e *NotConnectedError) Error() string {
	if e.Network == "" {
		return e.Container + " is on no network"
	}
	return fmt.Sprintf("%s is not on network %s", e.Container, e.Network)
}

// find returns the endpoint that ref names: by the container's name, with or without its
// engine, the start of its id, or one of its names on the network.
func (s Store) find(network, ref string) (*Endpoint, error) {
	all, err := s.Endpoints(network)
	found := slices.DeleteFunc(slices.Clone(all), func(e *Endpoint) bool { return !e.Container.Matches(ref) })
	if len(found) == 0 {
		found = slices.DeleteFunc(slices.Clone(all), func(e *Endpoint) bool { return !slices.Contains(e.Names, ref) })
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case err != nil:
		return nil, err
	case len(found) == 0:
		none := &NotConnectedError{Network: network, Container: ref}
		for _, e := range all {
			none.Containers = append(none.Containers, e.Container.ShortName())
		}
		return nil, none
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Container.QualifiedName())
	}
	return nil, badSpec("CONTAINER", ref, "matches several containers of network "+network, names...)
}
