package member

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/localsock"
	"cleat/overlay/gate"
	"cleat/overlay/registry"

	"go.etcd.io/etcd/server/v3/embed"
)

// Config configures a Member.
type Config struct {
	Host string // name of the host, and of the member
	Dir  string // of its data
	// Sockets is the directory of its own sockets, which only root may enter; "": the working directory. Those that
	// lead to other members are in the working directory in any case.
	Sockets string
	// Dial connects to the member on another host.
	Dial func(ctx context.Context, host string) (net.Conn, error)
	// Cluster are the hosts with members of a registry that exists, this one included; nil: it is the first member
	// of a new one. It only matters when Dir is empty.
	Cluster []string
	Others  []string // hosts that have members, of which this one was told last
	ID      string   // of the cluster
	Quota   int64    // bytes of the database, at which the registry accepts no changes; 0: 2 GiB, which is etcd's default
	// Broken is called when the member can't go on, e.g. because its disk is full, and with it this process: what etcd
	// holds is never released. It must not return. nil: the process exits.
	Broken func(why string)
	Log    func(format string, args ...any)
}

// A Member is a running member.
type Member struct {
	cfg     Config
	e       *embed.Etcd
	serving atomic.Pointer[embed.Etcd] // e, for what serves its clients
	closing atomic.Bool                // Close or Abort was called
	dir     string
	mu      sync.Mutex              // guards links
	links   map[string]net.Listener // by host
	running sync.WaitGroup          // connections to other members
	stop    context.CancelFunc
	ctx     context.Context
}

// clientSocket is the name of the socket for clients.
const clientSocket = "etcd.socket"

// startWithin bounds the start. A member waits for a majority, which may be down for long, in the background.
const startWithin = 3 * time.Second

// MaxLearners is how many members can be added before they vote.
const MaxLearners = 2

// Exists reports whether a directory has the data of a member. That of one whose first start was interrupted is none:
// it knows no other member, and started again, it would be the first one of a new registry.
func Exists(dir string) bool {
	logs, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal")) // etcd renames the directory when it is complete
	return err == nil && len(logs) > 0
}

// Start starts a member. It returns when the member serves, or after a few seconds if it waits for others.
func Start(cfg Config) (*Member, error) {
	dir, err := cfg.Sockets, error(nil)
	if dir == "" {
		dir, err = os.Getwd()
	}
	if err == nil {
		err = os.Chmod(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	m := &Member{cfg: cfg, dir: dir, links: map[string]net.Listener{}}
	m.ctx, m.stop = context.WithCancel(context.Background())
	if err := m.Link(slices.Concat(cfg.Cluster, cfg.Others)); err != nil {
		m.Close()
		return nil, err
	}
	if m.e, err = embed.StartEtcd(m.config()); err != nil {
		m.Close()
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	m.serving.Store(m.e)
	select {
	case <-m.e.Server.ReadyNotify():
	case <-time.After(startWithin):
	case err := <-m.e.Err():
		m.Close()
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	return m, nil
}

func (m *Member) config() *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = m.cfg.Host, m.cfg.Dir
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(m.dir, clientSocket)}}
	own := url.URL{Scheme: "unix", Host: registry.PeerSocket(m.cfg.Host)}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(m.dir, own.Host)}}, []url.URL{own}
	c.AdvertiseClientUrls = []url.URL{own} // nobody uses it: clients come by package gate
	c.InitialClusterToken = m.cfg.ID
	c.ClusterState = embed.ClusterStateFlagNew
	members := []string{m.cfg.Host}
	if m.cfg.Cluster != nil {
		c.ClusterState, members = embed.ClusterStateFlagExisting, m.cfg.Cluster
	}
	var initial []string
	for _, host := range members {
		initial = append(initial, host+"="+registry.PeerURL(host))
	}
	c.InitialCluster = strings.Join(initial, ",")
	// Members are added in pairs (package overlay), and only hosts that are alive. The strict check would want
	// them connected for 5 s first.
	c.MaxLearners, c.StrictReconfigCheck = MaxLearners, false
	// The history is for followers that come back. It would fill the database in years otherwise; package overlay
	// defragments it (registry.Relieve).
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "10m"
	c.QuotaBackendBytes = m.cfg.Quota
	c.EnableGRPCGateway = false
	c.GRPCAdditionalServerOptions = m.answers()
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger(m.log, m.cfg.Broken))
	return c
}

// Link makes the sockets by which the member reaches those of other hosts. Sockets of hosts that are not given are
// removed.
func (m *Member) Link(hosts []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for host, l := range m.links {
		if !slices.Contains(hosts, host) {
			l.Close()
			delete(m.links, host)
		}
	}
	for _, host := range hosts {
		if host == m.cfg.Host || m.links[host] != nil {
			continue
		}
		path := filepath.Join(m.dir, registry.PeerSocket(host))
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("link to the registry's member on host %s: %w", host, err)
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			return fmt.Errorf("link to the registry's member on host %s: %w", host, err)
		}
		m.links[host] = l
		m.running.Go(func() { m.serve(l, host) })
	}
	return nil
}

// serve passes connections on to the member on another host, but for those that only ask whether it is there.
func (m *Member) serve(l net.Listener, host string) {
	var open atomic.Int32 // connections to the other member, but for questions
	for {
		c, err := localsock.Accept(m.ctx, l.Accept)
		if err != nil {
			return
		}
		m.running.Go(func() {
			defer c.Close()
			defer context.AfterFunc(m.ctx, func() { c.Close() })()
			from := &begun{Conn: c, from: bufio.NewReader(c)}
			probe, err := from.isProbe()
			if err != nil {
				return // etcd did not need it
			}
			if probe && open.Load() > 0 {
				_ = from.answerProbe() // etcd asks again
				return
			}
			to, err := m.cfg.Dial(m.ctx, host)
			if err != nil {
				return // etcd tries again
			}
			if !probe {
				open.Add(1)
				defer open.Add(-1)
			}
			gate.Relay(m.ctx, from, to)
		})
	}
}

// StopServing removes the socket for clients. Connections go on until Close.
func (m *Member) StopServing() { _ = os.Remove(filepath.Join(m.dir, clientSocket)) }

// Abort ends a member of which nobody needs anything any more. It does not wait for requests to end.
func (m *Member) Abort() {
	m.closing.Store(true)
	if m.e != nil {
		m.e.Server.HardStop()
	}
	m.Close()
}

// closesServers is how etcd begins the errors that each of its servers has when it is closed.
const closesServers = "setting up serving from embedded etcd failed"

// log logs an error of etcd.
func (m *Member) log(format string, args ...any) {
	if m.closing.Load() && strings.Contains(fmt.Sprintf(format, args...), closesServers) {
		return
	}
	m.cfg.Log(format, args...)
}

// Close ends the member. It waits some seconds for connections of clients to end.
func (m *Member) Close() {
	m.closing.Store(true)
	if m.e != nil {
		select {
		case <-m.e.Server.ReadyNotify():
		default: // it waits for a majority, for which etcd's Close would wait, too
			m.e.Server.HardStop()
		}
		m.e.Close()
	}
	m.stop()
	_ = m.Link(nil)
	m.running.Wait()
}

// Votes reports whether the member votes, and serves clients. One that was removed from the registry does not: of it
// etcd's own IsLearner panics. Nor does one that has ended, which may have heard of its removal from another member,
// before its own records say so.
func (m *Member) Votes() bool {
	if m.ending() {
		return false
	}
	own := m.e.Server.Cluster().Member(m.e.Server.MemberID())
	return own != nil && !own.IsLearner
}

// Leads reports whether the member is the leader.
func (m *Member) Leads() bool {
	return !m.ending() && uint64(m.e.Server.Leader()) == uint64(m.e.Server.MemberID())
}

// DialClients returns a function that connects to the socket for clients of the member in a directory.
func DialClients(dir string) func(context.Context) (net.Conn, error) { return dial(dir, clientSocket) }

// DialPeers is DialClients for other members. host is the name of this host.
func DialPeers(dir, host string) func(context.Context) (net.Conn, error) {
	return dial(dir, registry.PeerSocket(host))
}

func dial(dir, name string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, name))
	}
}
