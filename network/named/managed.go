package named

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/ipam"
	"cleat/network/journal"

	"golang.org/x/sys/unix"
)

// Managed is what an engine that connects its container itself (attach.Container.Manager) calls the
// container, the network and the link. It refers to them by these when it disconnects the container.
type Managed struct {
	Container string `json:"container,omitempty"` // e.g. CNI_CONTAINERID
	Network   string `json:"network,omitempty"`   // e.g. the name in a configuration of CNI
	Interface string `json:"interface,omitempty"` // e.g. CNI_IFNAME
	// HandOver means that the engine moves the link into the container and configures it, as Docker does
	// (attach.Spec.HandOver). It tells nobody when.
	HandOver bool `json:"hand_over,omitempty"`
	// EngineRoutes means that the link is made in the container as without an engine, but that the engine makes
	// the routes through it.
	EngineRoutes bool `json:"engine_routes,omitempty"`
	// Resolvers are name servers that the container asks by the engine's settings: those of the host. The
	// network's name server answers instead, and asks the host's for names of others.
	Resolvers []netip.Addr `json:"resolvers,omitempty"`
	// NamesInside means that the engine's name server does not ask from within the container's namespace, so
	// Resolvers can't help: once its engine has started the container, its resolv.conf names a server inside it.
	NamesInside bool `json:"names_inside,omitempty"`
	// Reservation is the engine for which the requested addresses are held (HoldAddress): the endpoint takes
	// them over, and gives them back. "": they are not held.
	Reservation string `json:"reservation,omitempty"`
}

// handsOver reports whether an engine moves the link of a connection.
func (c *Connection) handsOver() bool { return c.Managed != nil && c.Managed.HandOver }

// engineRoutes reports whether an engine decides what a container reaches through a connection, and asks for
// names itself.
func (c *Connection) engineRoutes() bool {
	return c.Managed != nil && (c.Managed.HandOver || c.Managed.EngineRoutes)
}

// Join is Connect for a container that its engine describes, by a contract such as CNI. The engine
// calls Join again when it restarts the container, and Leave when the container ends. What engines have
// forgotten to disconnect, and what is in the way, is disconnected. After a restart of the machine, an engine
// may call Join before a keeper has put the network into the kernel: then Join does.
func Join(ctx context.Context, cfg Config, network string, container attach.Container, c Connection) (*Result, error) {
	if n, err := cfg.store().Network(network); err == nil && n.hasLostDevice() {
		if _, err := RepairAll(ctx, cfg); err != nil {
			return nil, fmt.Errorf("put networks into the kernel again: %w", err)
		}
	}
	find := func() (attach.Container, *netns.NS, error) {
		if c.handsOver() { // the container's namespace need not exist yet
			ns, err := netns.Current()
			return container, ns, err
		}
		ns, err := netns.Open(container.Path)
		return container, ns, err
	}
	r, err := whenFree(ctx, cfg, func() (*Result, error) { return connect(ctx, cfg, network, c, find) })
	if !isInTheWay(err) {
		return r, err
	}
	released, releaseErr := ReleaseForgotten(ctx, cfg, network)
	if len(released) == 0 || releaseErr != nil {
		return nil, errors.Join(err, releaseErr)
	}
	r, err = connect(ctx, cfg, network, c, find)
	if err == nil {
		r.Notes = append(r.Notes, released...)
	}
	return r, err
}

// hasLostDevice reports whether the host lacks the network's device, as after a restart of the machine.
// HostFault looks at the rest as well, which takes longer the more containers there are.
func (n *Network) hasLostDevice() bool {
	if !n.OnHost() {
		return false
	}
	host, err := netns.Current()
	if err != nil {
		return false
	}
	defer host.Close()
	_, err = link.Find(host, n.device())
	return errors.Is(err, unix.ENODEV)
}

// isInTheWay reports whether err may be due to an endpoint of a container that is being disconnected, or does
// not exist any more.
func isInTheWay(err error) bool {
	return errors.As(err, new(*ConnectedError)) || errors.As(err, new(*attach.TakenError)) || errors.As(err, new(*AddressTakenError)) ||
		errors.As(err, new(*PortTakenError)) || errors.As(err, new(*ipam.FullError)) || errors.Is(err, attach.ErrBridgeFull)
}

// Leave disconnects a container that Join has connected. It does nothing if the container is not
// connected, and needs none of its namespaces. Once it has begun, it is never rolled back: if it is
// interrupted, the next command completes it.
//
// If the process has a background (attach.Config.Background) and the network stays, Leave returns when the
// container's names and rules are gone and its link is in no list any more. Until the kernel has removed the
// link, which takes longer than all the rest, its addresses and ports are taken, and who wants them waits
// (whenFree).
func Leave(ctx context.Context, cfg Config, network string, container attach.Container) error {
	s, err := open(cfg)
	if err != nil {
		return err
	}
	defer s.close()
	e, err := s.store.Endpoint(network, endpointID(container))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	o, err := s.begin(ctx, operationName(network, endpointID(container)), record{Network: network, Endpoint: e})
	if err != nil {
		return err
	}
	if err := s.withdrawIn(ctx, o, e); err != nil {
		return err
	}
	others, err := s.store.hasEndpoints(network)
	if err == nil && others && cfg.Attach.Background != nil {
		return s.freeLater(ctx, o, e)
	}
	if err := s.freeIn(ctx, o, e); err != nil {
		return err
	}
	return RemoveUnused(ctx, cfg, network)
}

// freeLater is freeIn in the background.
func (s *session) freeLater(ctx context.Context, o *operation, e *Endpoint) error {
	if m := e.Wanted.Managed; m != nil && m.Reservation != "" {
		// The engine releases the addresses next (DropAddress), and has taken the link out of the container.
		if err := s.release(e); err != nil {
			return errors.Join(err, o.giveUp())
		}
	}
	ctx = context.WithoutCancel(ctx)
	unlisted := make(chan struct{})
	done, err := s.later(o, func(s *session) error {
		s.Attach.Unlisted = sync.OnceFunc(func() { close(unlisted) })
		if err := s.freeIn(ctx, o, e); err != nil {
			return err
		}
		s.Attach.Unlisted = nil
		return RemoveUnused(ctx, s.Config, e.Network) // if the others have left meanwhile
	})
	if err != nil {
		return err
	}
	select {
	case <-unlisted:
	case <-done:
	}
	return nil
}

// whenFree calls do. If a container that is being disconnected has what do wants, whenFree waits until it is
// gone and calls do again.
func whenFree[T any](ctx context.Context, cfg Config, do func() (T, error)) (T, error) {
	v, err := do()
	if !isInTheWay(err) {
		return v, err
	}
	if waitErr := cfg.store().waitForLeaving(ctx); waitErr != nil {
		return v, errors.Join(err, waitErr)
	}
	return do()
}

// waitForLeaving waits for the operations in progress on containers that are not, or not yet, on their
// network.
func (s Store) waitForLeaving(ctx context.Context) error {
	ops, err := os.ReadDir(s.RunPath("netops"))
	if err != nil {
		return fmt.Errorf("list operations on networks: %w", err)
	}
	for _, op := range ops {
		network, id, isEndpoint := strings.Cut(op.Name(), operationName("", ""))
		if !isEndpoint || strings.HasPrefix(op.Name(), searchPrefix) {
			continue
		}
		if _, err := os.Lstat(s.endpointFile(network, id)); err == nil {
			continue
		}
		if _, err := journal.WaitForOwner(ctx, s.RunPath("netops", op.Name())); err != nil {
			return err
		}
	}
	return nil
}

// ManagedBy returns the endpoints of containers that a manager has connected, on all networks.
func ManagedBy(cfg Config, manager string) ([]*Endpoint, error) {
	store := cfg.store()
	return store.onAllNetworks(func(n string) ([]*Endpoint, error) {
		endpoints, err := store.Endpoints(n)
		return slices.DeleteFunc(slices.Clone(endpoints), func(e *Endpoint) bool { return e.Container.Manager != manager }), err
	})
}

// EndpointsOf returns the endpoints of a container, on all networks. It is found by its manager or engine,
// and its key or name.
func EndpointsOf(cfg Config, container attach.Container) ([]*Endpoint, error) {
	store := cfg.store()
	return store.onAllNetworks(func(n string) ([]*Endpoint, error) {
		e, err := store.Endpoint(n, endpointID(container))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return []*Endpoint{e}, err
	})
}

// onAllNetworks returns the endpoints that find returns for the networks, by their names.
func (s Store) onAllNetworks(find func(network string) ([]*Endpoint, error)) (all []*Endpoint, err error) {
	networks, err := s.networkNames()
	if err != nil {
		return nil, err
	}
	for _, n := range networks {
		some, err := find(n)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// NameServers returns the addresses at which the host answers the queries of the network's containers; none
// if it does not.
func (r *Result) NameServers() []netip.Addr {
	host, err := netns.Current()
	if err != nil {
		return nil
	}
	defer host.Close()
	servers, err := r.Network.servers(host)
	if err != nil {
		return nil
	}
	return servers
}

// NamespaceOf opens the network namespace of an endpoint's container in which its link was made. The error
// is netns.ErrNotFound if it is gone. The caller closes it.
func NamespaceOf(cfg Config, e *Endpoint) (*netns.NS, error) {
	store := cfg.store()
	a, err := store.Attachment(e.AttachmentID)
	if err != nil {
		return nil, err
	}
	ns, err := attach.OpenNamespace(store.Store, a)
	if err == nil && ns == nil {
		err = netns.ErrNotFound
	}
	return ns, err
}

// GatewayFor returns the gateway of a container's default route for the address family of one of its
// addresses on the network; zero if the network has no such subnet.
func (n *Network) GatewayFor(a netip.Addr) netip.Addr {
	if n.subnet(a) == nil {
		return netip.Addr{}
	}
	return n.gatewayFor(a)
}
