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
	"cleat/network/attach"
)

// Result is what an operation did.
type Result struct {
	Network  *Network
	Endpoint *Endpoint      // nil for operations on networks
	Link     *attach.Result // of the container, which was attached; nil if none was
	Notes    []string
}

// Create creates a network. On error everything is as before. The error is an
// *attach.SpecError for a mistake in spec, and an *attach.TakenError if the name, a subnet or
// the device is in use.
func Create(ctx context.Context, cfg Config, spec NetworkSpec) (*Result, error) {
	if !spec.Spans {
		return create(ctx, cfg, spec, nil)
	}
	spec, err := FitSpan(cfg, spec)
	if err != nil {
		return nil, err
	}
	if cfg.Registrar == nil {
		return nil, ErrNoRegistrar
	}
	if err := cfg.Registrar.Create(ctx, spec); err != nil {
		return nil, err
	}
	n, err := cfg.store().Network(spec.Name)
	if err != nil {
		return nil, err
	}
	return &Result{Network: n}, nil
}

// ErrNoRegistrar means that this process can't register networks that span hosts.
var ErrNoRegistrar = errors.New("networks that span hosts need cleat-node")

func create(ctx context.Context, cfg Config, spec NetworkSpec, span *Span) (*Result, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	spec.Subnets = slices.Clone(spec.Subnets)
	if err := s.parentGateways(&spec); err != nil {
		return nil, err
	}
	if err := spec.normalize(); err != nil {
		return nil, err
	}
	unlock, err := s.store.lockNetworks(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	n, err := s.newNetwork(spec)
	if err != nil {
		return nil, err
	}
	n.Span = span
	o, err := s.begin(ctx, n.Name, record{Network: n.Name, Spec: n})
	if err != nil {
		return nil, err
	}
	if err := s.create(ctx, n); err != nil {
		return nil, abort(ctx, o, s.uncreate, n, err)
	}
	return &Result{Network: n, Notes: s.notes}, o.end()
}

// newNetwork checks a network against those that exist and against the host.
func (s *session) newNetwork(spec NetworkSpec) (*Network, error) {
	all, err := s.store.Networks()
	if err != nil {
		return nil, err
	}
	for _, other := range all {
		if other.Name == spec.Name {
			return nil, &attach.TakenError{Resource: "name", Name: spec.Name, Owner: "the network created " + other.Created.Local().Format("2006-01-02 15:04")}
		}
	}
	if err := s.checkParent(&spec); err != nil {
		return nil, err
	}
	if err := s.chooseSubnets(&spec, all); err != nil {
		return nil, err
	}
	if err := s.checkGateways(&spec); err != nil {
		return nil, err
	}
	id, err := freeID(all)
	if err != nil {
		return nil, err
	}
	return &Network{Version: networkVersion, ID: id, Created: time.Now().UTC().Truncate(time.Second), NetworkSpec: spec}, nil
}

// create writes the network's files, all of which appear by one rename, and puts the network
// into the kernel.
func (s *session) create(ctx context.Context, n *Network) error {
	temp := s.store.discarded(n.Name)
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("create network %s: %w", n.Name, err)
	}
	for _, dir := range []string{"endpoints", "addresses", "names", "remote"} {
		if err := os.MkdirAll(temp+"/"+dir, 0o755); err != nil {
			return fmt.Errorf("create network %s: %w", n.Name, err)
		}
	}
	if err := statedir.WriteJSON(temp+"/network.json", n); err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	if err := os.Rename(temp, s.store.networkDir(n.Name)); err != nil {
		return fmt.Errorf("create network %s: %w", n.Name, err)
	}
	return s.settleNetwork(ctx, n)
}

// uncreate undoes create.
func (s *session) uncreate(ctx context.Context, n *Network) error {
	return errors.Join(s.discard(n.Name), s.settleNetwork(ctx, n))
}

// abort undoes what a failed operation did with a network or an endpoint. If that fails as well, the journal
// stays for the next command.
func abort[T any](ctx context.Context, o *operation, undo func(context.Context, T) error, of T, err error) error {
	if errors.Is(err, attach.ErrKilled) {
		return errors.Join(err, o.giveUp())
	}
	if undoErr := undo(context.WithoutCancel(ctx), of); undoErr != nil {
		return errors.Join(err, fmt.Errorf("undo: %w; the next cleat command that changes networking tries again", undoErr), o.giveUp())
	}
	return errors.Join(err, o.end())
}

// Remove removes a network. Unless force is set, no container may be on it. Once it has begun,
// it is never rolled back: if it is interrupted, the next command completes it.
func Remove(ctx context.Context, cfg Config, name string, force bool) (*Result, error) {
	if n, err := cfg.store().Network(name); err == nil && n.Spans && cfg.Registrar != nil {
		return &Result{Network: n}, cfg.Registrar.Remove(ctx, name, force)
	}
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	defer s.close()
	unlock, err := s.store.lockNetworks(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	n, err := s.store.Network(name)
	if err != nil {
		return nil, err
	}
	ids, err := s.store.endpointIDs(name)
	if err != nil {
		return nil, err
	}
	if len(ids) > 0 && !force {
		return nil, s.inUse(name, ids)
	}
	o, err := s.begin(ctx, name, record{Network: name, Spec: n})
	if err != nil {
		return nil, err
	}
	if err := s.removeNetwork(ctx, n); err != nil {
		return nil, errors.Join(err, o.giveUp())
	}
	return &Result{Network: n, Notes: s.notes}, o.end()
}

// removeNetwork removes a network with all that is on it. A container that is being connected
// meanwhile finds the directory gone, and is not connected.
func (s *session) removeNetwork(ctx context.Context, n *Network) error {
	if err := s.discard(n.Name); err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	return s.settleNetwork(ctx, n)
}

// discard takes the files of a network away, all by one rename. settleNetwork removes them.
func (s *session) discard(name string) error {
	if err := os.RemoveAll(s.store.discarded(name)); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	if err := os.Rename(s.store.networkDir(name), s.store.discarded(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	return nil
}

// InUseError means that containers are on a network that is to be removed.
type InUseError struct {
	Network    string
	Containers []string // their names
}

func (e *InUseError) Error() string {
	if len(e.Containers) == 1 {
		return fmt.Sprintf("container %s is on network %s", e.Containers[0], e.Network)
	}
	return fmt.Sprintf("%d containers are on network %s, among them %s", len(e.Containers), e.Network, e.Containers[0])
}

func (s *session) inUse(network string, ids []string) error {
	err := &InUseError{Network: network}
	for _, id := range ids {
		name := id
		if e, readErr := s.store.Endpoint(network, id); readErr == nil {
			name = e.Container.ShortName()
		}
		err.Containers = append(err.Containers, name)
	}
	return err
}
