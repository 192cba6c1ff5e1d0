package named

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"cleat/link"
	"cleat/network/attach"
	"cleat/network/firewall"
	"cleat/network/journal"
	"cleat/network/names"
)

// settleNetwork puts a network into the kernel if it has a file, and removes it from there
// otherwise. old is what the kernel may have of it.
func (s *session) settleNetwork(ctx context.Context, old *Network) error {
	n, err := s.store.Network(old.Name)
	if errors.As(err, new(*NoNetworkError)) {
		return s.networkAbsent(ctx, old)
	}
	if err != nil {
		return err
	}
	return s.networkPresent(ctx, n, old)
}

func (s *session) networkPresent(ctx context.Context, n, old *Network) error {
	s.claimDevices(ctx)
	notes, err := attach.SetUpHost(ctx, s.Attach, n.Name, n.hostSide())
	for _, note := range notes {
		s.note("%s", note)
	}
	if err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	ruled, err := s.anyRules(n)
	if err != nil {
		return err
	}
	changed := !reflect.DeepEqual(n, old)
	same := changed && n.sameButWays(old)
	if ruled || changed { // rules of others may be about it
		err = s.syncRules(ctx)
	} else {
		err = s.applyRules(ctx, firewall.Change{Add: n.rules()})
	}
	if err == nil && changed && !same {
		err = s.endConnections(old, n)
	}
	if err != nil {
		return err
	}
	if err := s.filterBridge(n); err != nil {
		return err
	}
	if n.Internal != old.Internal {
		endpoints, err := s.store.Endpoints(n.Name)
		if err != nil {
			return err
		}
		for _, e := range endpoints {
			if err := s.fitSegments(n, e); err != nil {
				return err
			}
		}
	}
	if n.OnHost() {
		if err := s.routeLoopback(n.device()); err != nil {
			return err
		}
		if err := s.acceptForeign(ctx); err != nil {
			return err
		}
		s.noteForeign()
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	if same {
		return nil
	}
	return s.withNames(ctx, func(c *names.Client) error { return s.sendNetwork(ctx, c, n) })
}

// fitSegments gives a container large segments, or normal ones, as its network and its ports are now.
func (s *session) fitSegments(n *Network, e *Endpoint) error {
	a, err := s.store.Attachment(e.AttachmentID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return attach.FitSegments(s.store.Store, a, n.largeSegments(e))
}

// anyRules reports whether a network, or any other, has rules. They may be about a network that
// comes or goes, also before it comes and after it has gone.
func (s *session) anyRules(n *Network) (bool, error) {
	networks, err := s.store.Networks()
	return slices.ContainsFunc(append(networks, n), func(n *Network) bool { return len(n.Rules) > 0 || n.DefaultDeny || n.Isolation != "" }), err
}

// networkAbsent removes a network, and the endpoints that its discarded files have.
func (s *session) networkAbsent(ctx context.Context, n *Network) error {
	if err := s.waitForOperationsOn(ctx, n); err != nil {
		return err
	}
	endpoints, err := s.store.endpointsIn("." + n.Name)
	if err != nil {
		return err
	}
	ruled, err := s.anyRules(n)
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error {
			return s.withNames(ctx, func(c *names.Client) error { return s.dropNetwork(ctx, c, n) })
		},
		func() error {
			if ruled {
				return s.syncRules(ctx)
			}
			return s.applyRules(ctx, firewall.Change{Remove: n.rulesWith(endpoints)})
		},
		func() error { return s.forget(firewall.Change{Remove: n.rulesWith(endpoints)}) },
		func() error { return s.acceptForeign(ctx) },
	}
	for _, e := range endpoints {
		steps = append(steps, func() error { return s.settleResolver(ctx, e) }, func() error { return s.detach(ctx, e) },
			func() error { return s.releasePorts(ctx, e) })
	}
	steps = append(steps, func() error {
		notes, err := attach.RemoveHost(ctx, s.Attach, n.Name)
		for _, note := range notes {
			s.note("%s", note)
		}
		return err
	})
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
		if err := s.checkpoint(); err != nil {
			return err
		}
	}
	if names, err := s.store.networkNames(); err == nil && len(names) == 0 {
		if err := s.releaseDevices(ctx); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.store.discarded(n.Name))
}

// waitForOperationsOn waits for the commands that work on endpoints of a network whose files were
// taken away. They end soon: they find no directory for their files. New ones do not begin.
func (s *session) waitForOperationsOn(ctx context.Context, n *Network) error {
	paths, err := filepath.Glob(s.store.RunPath("netops", operationName(n.Name, "*")))
	for _, path := range paths {
		if _, err := journal.WaitForOwner(ctx, path); err != nil {
			return err
		}
	}
	return err
}

// settleEndpoint puts what belongs to an endpoint into the kernel if it has a file, and removes it
// otherwise. What e has and the file has not is removed. before is what the rules have of it, as far as
// anybody knows, and nil if nobody does.
func (s *session) settleEndpoint(ctx context.Context, e, before *Endpoint) error {
	now, err := s.store.Endpoint(e.Network, endpointID(e.Container))
	if errors.Is(err, fs.ErrNotExist) {
		return s.absent(ctx, e)
	}
	if err != nil {
		return err
	}
	n, err := s.store.Network(e.Network)
	if err != nil {
		return err
	}
	if err := s.fitSegments(n, now); err != nil {
		return err
	}
	if err := s.releaseFormerNames(e, now); err != nil {
		return err
	}
	extra := *e
	extra.Wanted.Ports = slices.DeleteFunc(s.claimed(e, e.Wanted.Ports), func(p Port) bool {
		// A port that overlaps one of the file was refused: the claims are the other one's.
		return slices.ContainsFunc(now.Wanted.Ports, p.overlaps)
	})
	if before == nil && len(extra.Wanted.Ports) > 0 {
		withdrawn := firewall.Change{Remove: firewall.State{Ports: n.portsOf(&extra)}}
		if err := s.applyRules(ctx, firewall.Change{Remove: withdrawn.Remove, Add: firewall.State{Ports: n.portsOf(now)}}); err != nil {
			return err
		}
		if err := s.forget(withdrawn); err != nil {
			return err
		}
		if err := s.checkpoint(); err != nil {
			return err
		}
	}
	if err := s.present(ctx, n, now, before); err != nil {
		return err
	}
	return s.releaseThese(ctx, e, extra.Wanted.Ports)
}

// settleUnknown is settleEndpoint if nobody knows what the rules have of the endpoint.
func (s *session) settleUnknown(ctx context.Context, e *Endpoint) error {
	return s.settleEndpoint(ctx, e, nil)
}

// present puts an endpoint into the rules, in place of what they have of it, and into the names. Its link is
// attached already, or will be by the keeper.
func (s *session) present(ctx context.Context, n *Network, e, before *Endpoint) error {
	if err := s.addEndpoint(ctx, n, e, before); err != nil {
		return err
	}
	if n.Driver == Routed {
		if err := s.routeLoopback(n.peer(e.Container)); err != nil {
			return err
		}
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	err := s.changeNames(ctx, e.Network, names.Change{Set: []names.Endpoint{e.host()}})
	if err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	return s.settleResolver(ctx, e)
}

// absent removes all that an endpoint has, or may have: e is what the journal knows of it.
func (s *session) absent(ctx context.Context, e *Endpoint) error {
	if err := s.withdraw(ctx, e); err != nil {
		return err
	}
	return s.free(ctx, e)
}

// withdraw removes an endpoint's names, its rules with its published ports, and its name servers.
func (s *session) withdraw(ctx context.Context, e *Endpoint) error {
	err := s.changeNames(ctx, e.Network, names.Change{Delete: []string{endpointID(e.Container)}})
	if err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	if n, err := s.store.Network(e.Network); err == nil { // otherwise its rules went with it
		its := *e
		its.Wanted.Ports = s.claimed(e, e.Wanted.Ports)
		if err := s.removeEndpoint(ctx, n, &its); err != nil {
			return err
		}
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	return s.settleResolver(ctx, e) // its attachment leads to its namespace
}

// free removes an endpoint's link, and gives back what others may have then.
func (s *session) free(ctx context.Context, e *Endpoint) error {
	for _, step := range []func() error{
		func() error { return s.detach(ctx, e) },
		func() error { return s.forgetNeighbours(e) },
		func() error { return s.releasePorts(ctx, e) },
		func() error { return s.releaseNames(e.Network, e) },
		func() error { return s.release(e) },
	} {
		if err := s.checkpoint(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// forgetNeighbours removes the host's entries about an endpoint from the neighbour table. The next
// container with one of its addresses has another Ethernet address.
func (s *session) forgetNeighbours(e *Endpoint) error {
	n, err := s.store.Network(e.Network)
	if err != nil || n.Driver != Bridge {
		return nil // the entries went with the network, or with the link
	}
	bridge, err := link.Find(s.host, n.device())
	if err != nil {
		return nil // somebody removed it, with all entries
	}
	for _, a := range e.Addresses {
		if err := bridge.DeleteNeighbor(a); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// detach detaches the endpoint's link, if it is attached.
func (s *session) detach(ctx context.Context, e *Endpoint) error {
	all, err := s.attachmentsOf(e)
	if err != nil {
		return err
	}
	for _, a := range all {
		if a.Spec.Network != e.Network {
			continue
		}
		notes, err := attach.DetachAttachment(ctx, s.Attach, a)
		for _, note := range notes {
			s.note("%s", note)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// attachmentsOf returns the attachments that may be an endpoint's. Only while it is being connected they are
// looked for among all.
func (s *session) attachmentsOf(e *Endpoint) ([]*attach.Attachment, error) {
	if e.AttachmentID == "" {
		return s.store.AttachmentsOf(e.Container)
	}
	a, err := s.store.Attachment(e.AttachmentID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []*attach.Attachment{a}, err
}
