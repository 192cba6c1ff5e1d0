package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cleat/overlay/registry"
	"cleat/overlay/trust"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Config configures a Member.
type Config struct {
	Host    string         // name of the host, and of the member
	Gate    netip.AddrPort // where the other members reach it
	Dir     string         // of its data
	Sockets string         // directory of its sockets, and the working directory
	Keys    Keys           // by which it knows the other members
	// Cluster are the members of a registry that exists, by name, with their gates and this one; nil: it is
	// the first member of a new one. It only matters when Dir is empty.
	Cluster map[string]netip.AddrPort
	ID      string // of the cluster
	Log     func(format string, args ...any)
}

// Keys are files with the host's certificate, its key, and the authority's certificate.
type Keys struct{ Certificate, Key, Authority string }

// A Member is a running member.
type Member struct{ e *embed.Etcd }

// Names of the sockets.
const (
	clientSocket = "etcd.socket"
	peerSocket   = "etcd-peers.socket"
)

// maxLearners is how many members can be added before they vote.
const maxLearners = 2

// startWithin bounds the start. A member waits for a majority, which may be down for long, in the background.
const startWithin = 3 * time.Second

// Exists reports whether a directory has a member's data.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "member"))
	return err == nil
}

// Start starts a member. It returns when the member serves, or after a few seconds if it waits for others.
func Start(cfg Config) (*Member, error) {
	if dir, err := os.Getwd(); err != nil || dir != cfg.Sockets {
		return nil, errors.Join(fmt.Errorf("start the registry: the working directory is %s, not %s", dir, cfg.Sockets), err)
	}
	c := embed.NewConfig()
	c.Name, c.Dir = cfg.Host, cfg.Dir
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(cfg.Sockets, clientSocket)}}
	c.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: peerSocket}}
	gate, err := url.Parse(registry.PeerURL(cfg.Gate))
	if err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = []url.URL{*gate}, []url.URL{*gate}
	c.PeerTLSInfo = transport.TLSInfo{CertFile: cfg.Keys.Certificate, KeyFile: cfg.Keys.Key, TrustedCAFile: cfg.Keys.Authority, ClientCertAuth: true, ServerName: trust.PeerName}
	c.InitialClusterToken = cfg.ID
	c.ClusterState = embed.ClusterStateFlagNew
	members := map[string]netip.AddrPort{cfg.Host: cfg.Gate}
	if cfg.Cluster != nil {
		c.ClusterState, members = embed.ClusterStateFlagExisting, cfg.Cluster
	}
	var initial []string
	for name, at := range members {
		initial = append(initial, name+"="+registry.PeerURL(at))
	}
	c.InitialCluster = strings.Join(initial, ",")
	// Members are added in pairs (package overlay), and only hosts that are alive. The strict check would want
	// them connected for 5 s first.
	c.MaxLearners, c.StrictReconfigCheck = maxLearners, false
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "10m"
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(logCore(cfg.Log)))
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(startWithin):
	case err := <-e.Err():
		e.Close()
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	return &Member{e}, nil
}

// Close ends the member.
func (m *Member) Close() { m.e.Close() }

// Ended receives if the member ends by itself: an error, or because it was removed from the registry.
func (m *Member) Ended() <-chan struct{} { return m.e.Server.StopNotify() }

// Leads reports whether the member is the leader.
func (m *Member) Leads() bool { return uint64(m.e.Server.Leader()) == uint64(m.e.Server.MemberID()) }

// ClientSocket returns the path of the socket for clients.
func ClientSocket(dir string) string { return filepath.Join(dir, clientSocket) }

// DialClients and DialPeers connect to a member's sockets.
func DialClients(dir string) func(context.Context) (net.Conn, error) { return dial(dir, clientSocket) }

// DialPeers is for other members.
func DialPeers(dir string) func(context.Context) (net.Conn, error) { return dial(dir, peerSocket) }

func dial(dir, name string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, name))
	}
}

// core passes errors of etcd on to a log.
type core struct {
	zapcore.LevelEnabler
	fields []zapcore.Field
	log    func(format string, args ...any)
}

func logCore(log func(format string, args ...any)) zapcore.Core {
	return &core{LevelEnabler: zapcore.ErrorLevel, log: log}
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.LevelEnabler, append(c.fields[:len(c.fields):len(c.fields)], fields...), c.log}
}

func (c *core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	text := e.Message
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			text += ": " + err.Error()
		}
	}
	c.log("etcd: %s", text)
	return nil
}

func (c *core) Sync() error { return nil }
