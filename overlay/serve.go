package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"cleat/overlay/control"
	"cleat/overlay/registry"
	"cleat/overlay/trust"
)

// serveLocal answers requests of this host's root (package control).
func (n *Node) serveLocal(ctx context.Context, l net.Listener) {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(context.Context, *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := do(r.Context(), r)
			if err != nil {
				w.WriteHeader(http.StatusConflict)
				v = errorFor(err)
			}
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	handle("GET /status", func(ctx context.Context, _ *http.Request) (any, error) { return n.status(n.votes(ctx)), nil })
	handle("GET /picture", n.picture)
	handle("POST /explain", n.explain)
	handle("POST /down", func(context.Context, *http.Request) (any, error) { n.stop(); return struct{}{}, nil })
	handle("POST /tokens", n.newToken)
	handle("POST /networks", n.newNetwork)
	handle("PUT /networks/{name}", n.changeNetwork)
	handle("DELETE /networks/{name}", n.removeNetwork)
	handle("POST /networks/{name}/blocks", n.moreAddresses)
	handle("DELETE /hosts/{name}", n.removeHost)
	handle("POST /leave", n.leave)
	handle("PUT /cluster", n.changeCluster)
	mux.HandleFunc("GET /backup", n.backup)
	handle("POST /rotate", n.rotateKeys)
	s := &http.Server{Handler: mux, BaseContext: func(net.Listener) context.Context { return ctx }}
	answered := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(answered)
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
		defer cancel()
		if s.Shutdown(within) != nil {
			s.Close()
		}
	})
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		n.cfg.Log("local requests: %v", err)
		return
	}
	<-answered // the process ends after this: whoever has requested that gets an answer first
}

// answerWithin bounds how long the end of a node waits for answers to local requests.
const answerWithin = time.Second

// errorFor returns an error as package control has it.
func errorFor(err error) *control.Error {
	e := &control.Error{Text: err.Error()}
	var none *NoBlockError
	var dead *DeadOwnerError
	var packets *PacketsError
	var unknown *registry.NotFoundError
	switch {
	case errors.As(err, &packets):
		e.Hint = packets.Hint()
	case errors.As(err, &dead):
		e.Hint = "its addresses are free once it is removed from the cluster: cleat-node remove " + dead.Host
	case errors.As(err, new(*registry.UnreachableError)):
		e.Hint = "containers go on; see which hosts are missing: cleat-node status"
	case errors.As(err, &unknown) && strings.HasPrefix(unknown.What, "host "):
		e.Hint = "`cleat-node status` lists the hosts"
	case errors.As(err, new(*NotReadyError)):
		e.Hint = "try again in a few seconds; hosts that don't answer hold it up: cleat-node status"
	case errors.As(err, new(*MajorityError)):
		e.Hint = "with three hosts or more that are alive, others become members within seconds; then try again"
	case errors.As(err, new(*UsedError)):
		e.Hint = "cleat net disconnect NETWORK CONTAINER; or disconnect all: cleat-node leave --force"
	case errors.As(err, new(*LastHostError)):
		e.Hint = "cleat-node leave --force"
	case errors.As(err, new(*LastAccessError)):
		e.Hint = "give another host access first: cleat-node down; cleat-node up --etcd URL"
	case errors.As(err, new(*registry.FullError)):
		e.Hint = "it goes on by itself when a host with a member has space"
	case errors.Is(err, errExternal):
		e.Hint = errExternal.Help
	case errors.As(err, &none):
		e.Hint = "make a network with a larger subnet: cleat net create NAME --span --subnet PREFIX"
	}
	return e
}

func body[T any](r *http.Request) (v T, err error) {
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<20)).Decode(&v); err != nil {
		return v, fmt.Errorf("read the request: %w", err)
	}
	return v, nil
}

const defaultValid = time.Hour

func (n *Node) newToken(ctx context.Context, r *http.Request) (any, error) {
	wanted, err := body[control.NewToken](r)
	if err != nil {
		return nil, err
	}
	if wanted.Valid <= 0 {
		wanted.Valid = defaultValid
	}
	n.mu.Lock()
	at := gates(n.mirror.voters())
	n.mu.Unlock()
	t, err := trust.NewToken(n.ID().Authority, at)
	if err != nil {
		return nil, err
	}
	expires := time.Now().Add(wanted.Valid).UTC().Truncate(time.Second)
	if err := n.registry.AddToken(ctx, t.ID, registry.Token{Hash: t.Hash(), Expires: expires}, wanted.Valid); err != nil {
		return nil, err
	}
	return control.Token{Text: t.String(), Expires: expires}, nil
}

func (n *Node) newNetwork(ctx context.Context, r *http.Request) (any, error) {
	wanted, err := body[control.NewNetwork](r)
	if err != nil {
		return nil, err
	}
	net := registry.Network{Name: wanted.Name, Created: time.Now().UTC().Truncate(time.Second), Spec: wanted.Spec}
	n.mu.Lock()
	for _, p := range wanted.Subnets {
		net.Subnets = append(net.Subnets, registry.Subnet{Prefix: p, BlockBits: BlockBits(p)})
		for _, other := range n.mirror.Networks {
			for _, s := range other.Subnets {
				if s.Prefix.Overlaps(p) {
					err = fmt.Errorf("subnet %s overlaps %s of network %s", p, s.Prefix, other.Name)
				}
			}
		}
	}
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(n.cfg.Dataplane.Check(ctx, net), n.checkPackets(net)); err != nil {
		return nil, err
	}
	if err := n.registry.CreateNetwork(ctx, net); err != nil {
		return nil, err
	}
	return struct{}{}, n.waitApplied(ctx, func(m *mirror) bool {
		_, ok := m.Networks[net.Name]
		for _, s := range net.Subnets {
			ok = ok && m.hasBlock(net.Name, s, n.settings.Host)
		}
		return ok
	})
}

func (n *Node) changeNetwork(ctx context.Context, r *http.Request) (any, error) {
	wanted, err := body[control.NewNetwork](r)
	if err != nil {
		return nil, err
	}
	name := r.PathValue("name")
	n.mu.Lock()
	now := n.mirror.Networks[name]
	n.mu.Unlock()
	now.Name, now.Spec = name, wanted.Spec
	if err := n.checkPackets(now); err != nil {
		return nil, err
	}
	if err := n.registry.ChangeNetwork(ctx, name, func(net *registry.Network) { net.Spec = wanted.Spec }); err != nil {
		return nil, err
	}
	return struct{}{}, n.waitApplied(ctx, func(m *mirror) bool {
		return reflect.DeepEqual(compact(m.Networks[name].Spec), compact(wanted.Spec))
	})
}

// compact returns JSON in one form.
func compact(text json.RawMessage) any {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return nil
	}
	return v
}

// InUseError means that containers are on a network.
type InUseError struct {
	Network    string
	Containers []string // with their hosts
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("%d containers are on network %s, among them %s", len(e.Containers), e.Network, e.Containers[0])
}

func (n *Node) removeNetwork(ctx context.Context, r *http.Request) (any, error) {
	name := r.PathValue("name")
	used := &InUseError{Network: name}
	n.mu.Lock()
	for of, all := range n.mirror.ends {
		if of.network != name {
			continue
		}
		for _, e := range all.open().all(of) {
			used.Containers = append(used.Containers, e.Container+" on host "+of.host)
		}
	}
	n.mu.Unlock()
	if len(used.Containers) > 0 && r.FormValue("force") == "" {
		slices.Sort(used.Containers)
		return nil, used
	}
	if err := n.registry.RemoveNetwork(ctx, name); err != nil {
		return nil, err
	}
	return struct{}{}, n.waitApplied(ctx, func(m *mirror) bool { _, ok := m.Networks[name]; return !ok })
}

// MajorityError means that a host can't be removed because the registry would have no majority without it.
type MajorityError struct {
	Host string
	Dead []string // hosts of the other members that are not alive
}

func (e *MajorityError) Error() string {
	if len(e.Dead) == 0 {
		return fmt.Sprintf("host %s has the only member of the registry", e.Host)
	}
	return fmt.Sprintf("without host %s the registry has no majority: not alive are %s", e.Host, strings.Join(e.Dead, ", "))
}

// memberOf returns the registry's member of a host, nil if it has none. It is an error if the registry needs it.
func (n *Node) memberOf(ctx context.Context, host string) (its *registry.Member, err error) {
	if external, err := n.lastAccess(host); external {
		return nil, err
	}
	members, err := n.registry.Members(ctx)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	left, refuses := 0, &MajorityError{Host: host}
	for i, m := range members {
		if m.Host == host {
			its = &members[i]
			continue
		}
		if m.Learner {
			continue
		}
		left++
		if _, lives := n.mirror.alive[m.Host]; !lives {
			refuses.Dead = append(refuses.Dead, m.Host)
		}
	}
	if its != nil && !its.Learner && (left-len(refuses.Dead))*2 <= left {
		return nil, refuses
	}
	return its, nil
}

func (n *Node) removeHost(ctx context.Context, r *http.Request) (any, error) {
	name := r.PathValue("name")
	if name == n.settings.Host {
		return nil, errors.New("this host can't remove itself; `cleat-node leave` takes it out of its cluster")
	}
	its, err := n.memberOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := n.registry.RemoveHost(ctx, name); err != nil {
		return nil, err
	}
	n.cfg.Log("host %s was removed from the cluster", name)
	if its != nil {
		if err := n.registry.RemoveMember(ctx, its.ID); err != nil {
			n.cfg.Log("%v; it is tried again", err) // by the member that leads (members.go)
		}
	}
	return struct{}{}, nil
}

// changeCluster changes settings of the cluster.
func (n *Node) changeCluster(ctx context.Context, r *http.Request) (any, error) {
	wanted, err := body[control.Cluster](r)
	if err != nil {
		return nil, err
	}
	after := wanted.ForgetAfter
	if after != nil && *after < LeastForgetAfter && *after != control.Never {
		return nil, fmt.Errorf("hosts can't be forgotten after %s; want %s or more", *after, LeastForgetAfter)
	}
	if after == nil {
		return struct{}{}, nil
	}
	if err := n.registry.ChangeCluster(ctx, func(c *registry.Cluster) { c.ForgetAfter = *after }); err != nil {
		return nil, err
	}
	return struct{}{}, n.waitApplied(ctx, func(m *mirror) bool { return m.Cluster.ForgetAfter == *after })
}

// votesWithin bounds how long a request for the status waits for the registry.
const votesWithin = 500 * time.Millisecond

// votes returns the hosts whose members of the registry vote; those that should have a member, if it does not answer.
func (n *Node) votes(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, votesWithin)
	defer cancel()
	var names []string
	members, err := []registry.Member(nil), error(&registry.NotFoundError{What: "member of the registry"})
	if n.self().Etcd == nil && !n.isExternal() {
		members, err = n.registry.Members(ctx)
	}
	for _, m := range members {
		if !m.Learner && m.Started {
			names = append(names, m.Host)
		}
	}
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, h := range n.mirror.voters() {
			names = append(names, h.Name)
		}
	}
	slices.Sort(names)
	return names
}

// complete reports whether the dataplane has all that the registry has. It is called with mu held.
func (n *Node) complete() bool {
	return n.endsListed && n.applied == n.changes && len(n.dirty) == 0 && !n.applying && !n.mirror.lacksBlocks(n.settings.Host)
}

func (n *Node) status(members []string) control.Status {
	var peers []control.Peer
	if l, ok := n.cfg.Dataplane.(PeerLister); ok {
		peers = l.Peers()
	}
	paths := n.cfg.Dataplane.Paths()
	n.mu.Lock()
	defer n.mu.Unlock()
	s := control.Status{Cluster: n.settings.Cluster, Host: n.settings.Host, PID: os.Getpid(), Registry: control.RegistryStatus{Answers: n.answers, Since: n.answered, Members: members, External: n.mirror.Cluster.External}, Complete: n.complete(), Peers: peers, Encryption: n.encryption()}
	if after, ever := forgetAfter(n.mirror.Cluster); ever {
		s.ForgetAfter = after
	}
	if n.settings.Etcd != nil {
		s.Registry.URLs = n.settings.Etcd.URLs
	}
	for _, name := range slices.Sorted(maps.Keys(n.mirror.Hosts)) {
		h := n.mirror.Hosts[name]
		now, lives := n.mirror.alive[name]
		one := control.HostStatus{Name: name, Address: h.Address, Alive: lives, Since: n.since[name], Member: h.Member, Program: now.Program}
		if path, ok := paths[name]; ok {
			one.By, one.Why, one.MTU = path.By, path.Why, path.MTU
		}
		s.Hosts = append(s.Hosts, one)
	}
	for _, net := range n.mirror.state(n.settings.Host).Networks {
		one := control.NetworkStatus{Name: net.Name, Blocks: net.Own, Endpoints: map[string]int{}}
		for _, sub := range net.Subnets {
			one.Subnets = append(one.Subnets, sub.Prefix)
		}
		for of, all := range n.mirror.ends {
			if of.network == net.Name {
				one.Endpoints[of.host] = all.count
			}
		}
		s.Networks = append(s.Networks, one)
	}
	if l, ok := n.cfg.Dataplane.(Noter); ok {
		s.Notes = l.Notes()
	}
	for _, about := range slices.Sorted(maps.Keys(n.problems)) {
		s.Problems = append(s.Problems, n.problems[about])
	}
	return s
}

// same reports whether two records of an endpoint are equal.
func same(a, b registry.Endpoint) bool {
	text := func(e registry.Endpoint) string {
		t, _ := json.Marshal(e)
		return string(t)
	}
	return text(a) == text(b)
}
