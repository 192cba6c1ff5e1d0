package named

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"cleat/internal/statedir"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/names"
	"cleat/network/resolvconf"
)

// A container asks the gateway of its network for names. That is not enough for three kinds of
// containers, and the name server serves those inside their own network namespaces, at
// insideServer:
//
//   - on a network whose gateway is not the host,
//   - on several networks: each libc takes the answer of one server, so one has to know all names,
//   - with a resolver of their engine, such as Docker's, whose names nobody else knows.
//
// A resolver is never undone step by step. Each change of a container's endpoints computes it
// anew from their files and from the original resolv.conf (settleResolver).

// insideServer is where the name server listens inside a container. Other programs listen there at
// 127.0.0.1 and 127.0.1.1 (dnsmasq), 127.0.0.11 (Docker), 127.0.0.53 and 127.0.0.54
// (systemd-resolved).
var insideServer = netip.AddrFrom4([4]byte{127, 0, 0, 64})

// resolver is what was set up last for the names of a container. Its file is
// STATE/resolvers/ID.json.
type resolver struct {
	Container attach.Container  `json:"container"`
	Inode     uint64            `json:"inode"`            // of the container's network namespace
	Cookie    uint64            `json:"cookie,omitempty"` // of the same; 0: the kernel has none
	Edits     []resolvconf.Edit `json:"edits"`            // of its resolv.conf, the newest first
	Servers   []netip.Addr      `json:"servers"`          // ours, in its resolv.conf
	Inside    *names.Socket     `json:"inside,omitempty"` // served inside the container; nil: none
	// OwnServer means that a program of the container had the port of name servers. After a restart
	// of the container the port is left to it, although it may not have started yet.
	OwnServer bool `json:"own_server,omitempty"`
}

func (s Store) resolversDir() string          { return s.Path("resolvers") }
func (s Store) resolverFile(id string) string { return s.Path("resolvers", id+".json") }

// resolver returns the resolver of a container; nil if it has none.
func (s Store) resolver(id string) (*resolver, error) {
	r, err := parseFile[resolver](s.resolverFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return r, err
}

// resolvers returns the resolvers of all containers. Files that can't be read are left out.
func (s Store) resolvers() []*resolver {
	paths, _ := filepath.Glob(s.resolverFile("*"))
	var all []*resolver
	for _, path := range paths {
		if r, err := parseFile[resolver](path); err == nil {
			all = append(all, r)
		}
	}
	return all
}

// NameServersOf returns the addresses at which a container finds the names of its networks; none
// if its resolv.conf was left alone.
func (s Store) NameServersOf(c attach.Container) []netip.Addr {
	r, err := s.resolver(resolverID(c))
	if err != nil || r == nil {
		return nil
	}
	return r.Servers
}

// resolverID returns the name of a container's resolver in files. An engine may connect a container under
// another key for each network.
func resolverID(c attach.Container) string {
	if c.Manager != "" && c.ID != "" {
		c.Key = c.ID
	}
	return c.FileName()
}

// endpointsFor returns the endpoints through which a container wants names, the oldest first.
func (s Store) endpointsFor(c attach.Container) ([]*Endpoint, error) {
	networks, err := s.networkNames()
	if err != nil {
		return nil, err
	}
	var all []*Endpoint
	for _, n := range networks {
		its, err := s.endpointsOn(n, c)
		if err != nil {
			return nil, err
		}
		all = append(all, its...)
	}
	slices.SortStableFunc(all, func(a, b *Endpoint) int { return a.Created.Compare(b.Created) })
	if len(all) == 1 && all[0].Wanted.engineRoutes() && !all[0].Wanted.Managed.NamesInside {
		return nil, nil // its engine's name server asks the gateway (Managed.Resolvers)
	}
	return all, nil
}

// endpointsOn returns the endpoints of a container on one network that want names.
func (s Store) endpointsOn(network string, c attach.Container) ([]*Endpoint, error) {
	var its []*Endpoint
	if resolverID(c) == endpointID(c) {
		e, err := s.Endpoint(network, endpointID(c))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			its = append(its, e)
		}
	} else {
		all, err := s.Endpoints(network)
		if err != nil {
			return nil, err
		}
		its = slices.DeleteFunc(slices.Clone(all), func(e *Endpoint) bool { return resolverID(e.Container) != resolverID(c) })
	}
	return slices.DeleteFunc(its, func(e *Endpoint) bool { return e.Wanted.NoDNS }), nil
}

// open opens the network namespace for which the resolver was set up; nil if it is gone.
func (r *resolver) open() *netns.NS {
	ns, err := netns.Open(r.Container.Path)
	if err != nil {
		return nil
	}
	if inode, cookie, err := identity(ns); err != nil || inode != r.Inode || cookie != r.Cookie {
		ns.Close()
		return nil
	}
	return ns
}

// identity returns the inode number of a namespace and its cookie; 0 if the kernel has no cookies.
func identity(ns *netns.NS) (inode, cookie uint64, err error) {
	inode, err = ns.ID()
	if c, cookieErr := ns.Cookie(); cookieErr == nil {
		cookie = c
	}
	return inode, cookie, err
}

// settleResolver makes a container find the names of its networks as the files of its endpoints
// say. e is one of its endpoints, and may have no file any more.
func (s *session) settleResolver(ctx context.Context, e *Endpoint) error {
	unlock, err := statedir.Lock(ctx, s.store.resolversDir())
	if err != nil {
		return err
	}
	defer unlock()
	id := resolverID(e.Container)
	old, err := s.store.resolver(id)
	if err != nil {
		return err
	}
	endpoints, err := s.store.endpointsFor(e.Container)
	if err != nil || old == nil && len(endpoints) == 0 {
		return err
	}
	c, ns, err := s.whereabouts(append(slices.Clip(endpoints), e), old)
	if err != nil {
		return err
	}
	if ns != nil {
		defer ns.Close()
	}
	switch {
	case len(endpoints) == 0:
		return s.removeResolver(ctx, id, old, ns)
	case ns == nil || !c.HasResolvConf():
		return s.stopInside(ctx, id)
	}
	return s.setResolver(ctx, c, ns, endpoints, old)
}

// whereabouts returns a container and its network namespace; no namespace if it does not run.
func (s *session) whereabouts(endpoints []*Endpoint, old *resolver) (attach.Container, *netns.NS, error) {
	for _, e := range endpoints {
		a, err := s.store.Attachment(e.AttachmentID)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return attach.Container{}, nil, err
		}
		if ns, err := attach.OpenNamespace(s.store.Store, a); ns != nil || err != nil {
			return a.Container, ns, err
		}
	}
	if old != nil {
		return old.Container, old.open(), nil
	}
	return attach.Container{}, nil, nil
}

// removeResolver gives a container on no network its old resolv.conf back.
func (s *session) removeResolver(ctx context.Context, id string, old *resolver, ns *netns.NS) error {
	if err := s.stopInside(ctx, id); err != nil {
		return err
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	for _, e := range old.Edits {
		if ns == nil && resolvconf.InContainer(e.Path) {
			break // the file went with the container
		}
		if err := e.Revert(ns); err != nil {
			s.note("the resolv.conf of %s can't be restored: %v", old.Container.ShortName(), err)
			break
		}
	}
	return statedir.Remove(s.store.resolverFile(id))
}

// setResolver serves names inside the container if it has to, and writes its resolv.conf.
func (s *session) setResolver(ctx context.Context, c attach.Container, ns *netns.NS, endpoints []*Endpoint, old *resolver) error {
	path, err := c.ResolvConf()
	if err != nil {
		return err
	}
	f, err := resolvconf.Open(path, ns)
	if err != nil {
		s.note("the resolv.conf of %s can't be written: %v", c.ShortName(), err)
		return nil
	}
	defer f.Close()
	r := &resolver{Container: c}
	if r.Inode, r.Cookie, err = identity(ns); err != nil {
		return err
	}
	if old != nil {
		r.Edits, r.OwnServer = old.Edits, old.OwnServer
	}
	var planErr error
	edit, changes, err := f.Next(r.Edits, func(original []byte) []byte {
		var text []byte
		text, planErr = s.planResolver(ctx, r, ns, endpoints, original)
		return text
	})
	if err == nil {
		err = planErr
	}
	if err != nil {
		s.note("the resolv.conf of %s can't be written: %v", c.ShortName(), err)
		return nil
	}
	r.Edits = withEdit(r.Edits, *edit)
	if !reflect.DeepEqual(r, old) {
		if err := statedir.WriteJSON(s.store.resolverFile(resolverID(c)), r); err != nil {
			return err
		}
	}
	if err := s.checkpoint(); err != nil {
		return err
	}
	if changes {
		if err := f.Apply(edit); err != nil {
			s.note("the resolv.conf of %s can't be written: %v", c.ShortName(), err)
		}
	}
	if r.Inside == nil {
		return s.stopInside(ctx, resolverID(c))
	}
	return nil
}

// maxEdits is how many edits of a file are known. The file has the text of one of the last two: of
// the last one, or of the one before if the process was killed before it wrote the file.
const maxEdits = 4

// withEdit adds the newest edit to others. An older one with the same text is dropped.
func withEdit(all []resolvconf.Edit, newest resolvconf.Edit) []resolvconf.Edit {
	others := slices.DeleteFunc(slices.Clone(all), func(e resolvconf.Edit) bool { return bytes.Equal(e.Text, newest.Text) })
	all = append([]resolvconf.Edit{newest}, others...)
	return all[:min(len(all), maxEdits)]
}

// maxServers is how many name servers a libc uses (MAXNS, resolv.h).
const maxServers = 3

// planResolver decides where a container asks for names. It sets the fields of r that say so, makes the
// name server serve inside the container if that is so, and returns the text for the container's
// resolv.conf.
func (s *session) planResolver(ctx context.Context, r *resolver, ns *netns.NS, endpoints []*Endpoint, original []byte) ([]byte, error) {
	networks, err := s.networksOf(endpoints)
	if err != nil {
		return nil, err
	}
	engines, err := s.engineServers(ns, resolvconf.Parse(original).Servers)
	if err != nil {
		return nil, err
	}
	var want resolvconf.Settings
	if len(engines) == 0 && slices.ContainsFunc(networks, func(n *Network) bool { return !n.Internal }) {
		want.Search = s.searchDomains(networks)
	}
	if !r.OwnServer && (len(networks) > 1 || !networks[0].OnHost() || len(engines) > 0) {
		at := &names.Socket{ID: insideID(resolverID(r.Container)), OnlyOurs: len(engines) > 0}
		for _, n := range networks {
			at.Networks = append(at.Networks, n.Name)
		}
		err := s.serveInside(ctx, *at, ns, r.Container)
		if err == nil {
			r.Servers, r.Inside = []netip.Addr{insideServer}, at
			want.Servers = append(want.Servers, insideServer)
			want.Servers = append(want.Servers, engines[:min(len(engines), maxServers-1)]...)
			return resolvconf.Set(original, want), nil
		}
		if !errors.Is(err, errPortTaken) {
			return nil, err
		}
		r.OwnServer = true
		s.note("%s has a name server of its own, so it finds only names of the networks whose gateway is the host", r.Container.ShortName())
	}
	for _, n := range networks {
		if n.OnHost() {
			r.Servers = append(r.Servers, n.gateways()...)
		}
	}
	if want.Servers = r.Servers; len(want.Servers) == 0 {
		return original, nil
	}
	want.Servers = want.Servers[:min(len(want.Servers), maxServers)]
	return resolvconf.Set(original, want), nil
}

func (s *session) networksOf(endpoints []*Endpoint) ([]*Network, error) {
	var all []*Network
	for _, e := range endpoints {
		n, err := s.store.Network(e.Network)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// searchDomains returns the domains in which a container looks for names of one label: those of
// the networks, so that a container's name is never asked of others, and then the host's. If the
// host has none, neither has the container.
func (s *session) searchDomains(networks []*Network) []string {
	path := s.ResolvConf
	if path == "" {
		path = "/etc/resolv.conf"
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	hosts := slices.DeleteFunc(resolvconf.Parse(text).Search, func(domain string) bool { return strings.Trim(domain, ".") == "" })
	if len(hosts) == 0 {
		return nil
	}
	var all []string
	for _, n := range networks {
		all = append(all, n.Name)
	}
	return append(all, hosts...)
}

// checkResolvers returns what of the containers' resolvers the name server lacks or has too much, and what of
// those of networks is elsewhere.
func (s *session) checkResolvers(ctx context.Context, networks []*Network) ([]Difference, error) {
	var all []Difference
	err := s.withNames(ctx, func(c *names.Client) error {
		state, err := c.State(ctx)
		if err != nil {
			return err
		}
		all = s.checkServers(networks, state.Sockets)
		wanted := map[string]bool{}
		for _, r := range s.store.resolvers() {
			ns := r.open()
			if r.Inside == nil || ns == nil {
				continue
			}
			ns.Close()
			wanted[r.Inside.ID] = true
			i := slices.IndexFunc(state.Sockets, func(k names.SocketState) bool { return k.ID == r.Inside.ID })
			if i < 0 || state.Sockets[i].Cookie != r.Cookie || !sameView(state.Sockets[i].Socket, *r.Inside) {
				all = append(all, Difference{Network: r.Inside.Networks[0], Container: r.Container.ShortName(), What: "names are not served inside it"})
			}
		}
		for _, k := range state.Sockets {
			if strings.HasPrefix(k.ID, insidePrefix) && !wanted[k.ID] {
				all = append(all, Difference{What: "the name server keeps the network namespace of " + strings.TrimPrefix(k.ID, insidePrefix) + ", which is gone"})
			}
		}
		return nil
	})
	return all, err
}

// repairResolvers puts right what checkResolvers finds.
func (s *session) repairResolvers(ctx context.Context) error {
	var errs []error
	for _, r := range s.store.resolvers() {
		errs = append(errs, s.settleResolver(ctx, &Endpoint{Container: r.Container}))
	}
	return errors.Join(append(errs, releaseDead(ctx, s.store))...)
}
