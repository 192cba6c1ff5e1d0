package named

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	"cleat/network/attach"
)

// Identity is what an engine tells of a container after Join.
type Identity struct {
	Container   attach.Container // with the name and the id
	Aliases     []string         // further names on the network
	NamesInside bool             // see Managed; once it was true, it stays so
}

// Identify tells what a container is that Join has connected under its Key alone, because its engine
// says later what it calls the container. The endpoint, its names in DNS, rules about it and its attachment
// follow. A name that another container has already becomes a note. The error is fs.ErrNotExist if the
// container is not connected any more.
func Identify(ctx context.Context, cfg Config, network string, who Identity) (*Result, error) {
	container, aliases := who.Container, who.Aliases
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	id := endpointID(container)
	e, err := s.store.Endpoint(network, id)
	if err != nil {
		return nil, err
	}
	n, err := s.store.Network(network)
	if err != nil {
		return nil, err
	}
	o, err := s.begin(ctx, operationName(network, id), record{Network: network, Endpoint: e})
	if err != nil {
		return nil, err
	}
	old, err := s.store.Endpoint(network, id) // again: it may have changed since
	if err != nil {
		return nil, errors.Join(err, o.end())
	}
	now := *old
	now.Container = container
	now.Wanted.Aliases = slices.DeleteFunc(slices.Clone(aliases), func(name string) bool { _, err := containerNames(container, []string{name}); return err != nil })
	if now.Names, err = containerNames(container, now.Wanted.Aliases); err != nil {
		return nil, errors.Join(err, o.end())
	}
	if m := now.Wanted.Managed; m != nil && who.NamesInside {
		managed := *m
		managed.NamesInside = true
		now.Wanted.Managed = &managed
	}
	now.Interface = s.interfaceIn(container, old)
	both := now
	both.Names = union(old.Names, now.Names)
	if err := s.identify(ctx, o, old, &now, &both); err != nil {
		return nil, abort(ctx, o, s.settleUnknown, &both, err)
	}
	return &Result{Network: n, Endpoint: &now, Notes: s.notes}, o.end()
}

// interfaceIn returns the name that an engine has given to an endpoint's link in its container; the one
// that is known if the container does not run yet.
func (s *session) interfaceIn(c attach.Container, e *Endpoint) string {
	ns := attach.OpenContainer(c)
	if ns == nil || !e.Wanted.handsOver() {
		return e.Interface
	}
	defer ns.Close()
	a, err := s.store.Attachment(e.AttachmentID)
	if err != nil {
		return e.Interface
	}
	return cmp.Or(attach.InterfaceOf(ns, a), e.Interface)
}

// identify records both the old and the new names, claims the new ones, and writes the files.
func (s *session) identify(ctx context.Context, o *operation, old, now, both *Endpoint) error {
	if err := o.record(record{Network: now.Network, Endpoint: both}); err != nil {
		return err
	}
	if err := s.claimName(now.Network, now); errors.As(err, new(*attach.TakenError)) {
		s.note("%v", err)
		now.Names = slices.DeleteFunc(slices.Clone(now.Names), func(name string) bool {
			return s.claimName(now.Network, &Endpoint{Container: now.Container, Names: []string{name}}) != nil
		})
	} else if err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	if err := s.store.writeEndpoint(now); err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	err := attach.Identify(s.store.Store, old.AttachmentID, now.Container) // leads to its resolv.conf
	if err != nil && !errors.Is(err, fs.ErrNotExist) {                     // it was detached
		return err
	}
	return s.settleEndpoint(ctx, both, old)
}

// releaseFormerNames releases the claims on names that an endpoint had before, according to a journal.
func (s *session) releaseFormerNames(before, now *Endpoint) error {
	former := *before
	former.Names = slices.DeleteFunc(slices.Clone(before.Names), func(name string) bool { return slices.Contains(now.Names, name) })
	return s.releaseNames(now.Network, &former)
}
