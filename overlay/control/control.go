package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"syscall"
	"time"
)

// Dir returns the directory of the node of a state directory.
func Dir(state string) string { return filepath.Join(state, "node") }

// SocketPath returns the path of the socket of the node of a state directory.
func SocketPath(state string) string { return filepath.Join(Dir(state), "node.socket") }

// ErrNotRunning means that no node runs on this host.
var ErrNotRunning = errors.New("cleat-node does not run on this host")

// Error is why the node did not do what was requested.
type Error struct {
	Text string `json:"error"`
	Hint string `json:"hint,omitempty"` // what to type next
}

func (e *Error) Error() string { return e.Text }

// NewNetwork is a network to create on all hosts.
type NewNetwork struct {
	Name    string          `json:"name"`
	Subnets []netip.Prefix  `json:"subnets"`
	Spec    json.RawMessage `json:"spec"` // for the dataplanes
}

// NewToken is an invitation to make.
type NewToken struct {
	Valid time.Duration `json:"valid"`
}

// Token is an invitation.
type Token struct {
	Text    string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// Question is one about a container of a host. Dataplanes read what it is about.
type Question struct {
	Host  string          `json:"host"`
	About json.RawMessage `json:"about"`
}

// Never is a Cluster.ForgetAfter: other hosts never get the addresses of a dead host.
const Never = time.Duration(-1)

// Cluster is settings of the cluster to change; nil: as they are.
type Cluster struct {
	ForgetAfter *time.Duration `json:"forget_after,omitempty"`
}

// Status is what a node knows.
type Status struct {
	Cluster  string          `json:"cluster"`
	Host     string          `json:"host"`
	PID      int             `json:"pid"` // of the node's process
	Registry RegistryStatus  `json:"registry"`
	Complete bool            `json:"complete"` // this host has all that the registry has: networks, and what is known of other hosts' containers
	Hosts    []HostStatus    `json:"hosts"`
	Networks []NetworkStatus `json:"networks"`
	Peers    []Peer          `json:"peers,omitempty"` // of BGP
	// Encryption is that between hosts; nil if no hosts use WireGuard.
	Encryption *Encryption `json:"encryption,omitempty"`
	Problems   []string    `json:"problems,omitempty"`
	Notes      []string    `json:"notes,omitempty"` // what the node has corrected by itself
	// ForgetAfter is how long a host must be dead until others may have its addresses; 0: they never may.
	ForgetAfter time.Duration `json:"forget_after,omitempty"`
}

// Encryption is how a cluster encrypts.
type Encryption struct {
	State      string    `json:"state,omitempty"` // "on": everything between hosts; "pending": soon; "": what some hosts exchange
	Generation int       `json:"generation"`      // of the keys in use
	Since      time.Time `json:"since,omitzero"`  // when they came into use
}

// Peer is a session of BGP with a router or a route reflector.
type Peer struct {
	Address     netip.Addr `json:"address"`
	AS          uint32     `json:"as"`
	Established bool       `json:"established"`
	Since       time.Time  `json:"since,omitzero"` // when the session began or ended
	Sent        int        `json:"sent"`           // prefixes
	Received    int        `json:"received"`       // prefixes
	BFD         string     `json:"bfd,omitempty"`  // "up", "down"; "": not used
	Error       string     `json:"error,omitempty"`
}

// RegistryStatus is how the registry is.
type RegistryStatus struct {
	Answers bool      `json:"answers"`
	Since   time.Time `json:"since"` // when it began to answer, or stopped
	Members []string  `json:"members"`
	// External means that the registry is an etcd which no host of the cluster runs. Members then are the hosts that
	// have access to it, and URLs is where, if this host is one of them.
	External bool     `json:"external,omitempty"`
	URLs     []string `json:"urls,omitempty"`
}

// HostStatus is a host as another one sees it.
type HostStatus struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	Alive   bool       `json:"alive"`
	Since   time.Time  `json:"since,omitzero"` // when this node has seen it come or go
	Member  bool       `json:"member"`
	By      string     `json:"by,omitempty"`      // how its containers are reached: "vxlan", "routes" or "unreachable"
	Why     string     `json:"why,omitempty"`     // they are reached so
	Program string     `json:"program,omitempty"` // version of its cleat-node
	MTU     int        `json:"mtu,omitempty"`     // the largest packets from and to them, in bytes; 0: unknown
}

// NetworkStatus is a network of the cluster.
type NetworkStatus struct {
	Name      string         `json:"name"`
	Subnets   []netip.Prefix `json:"subnets"`
	Blocks    []netip.Prefix `json:"blocks"`    // of this host
	Endpoints map[string]int `json:"endpoints"` // their number, by host
}

// Client sends requests to a node. It is safe for concurrent use.
type Client struct{ http http.Client }

// New returns a client for the node of a state directory.
func New(state string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", SocketPath(state))
	}
	return &Client{http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Do sends a request and decodes its answer into into, unless that is nil. The error is ErrNotRunning, or an
// *Error of the node.
func (c *Client) Do(ctx context.Context, method, path string, body, into any) error {
	var text bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return fmt.Errorf("ask cleat-node: %w", err)
		}
	}
	answer, err := c.send(ctx, method, path, &text)
	if err != nil {
		return err
	}
	defer answer.Close()
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(answer).Decode(into); err != nil {
		return fmt.Errorf("ask cleat-node: %w", err)
	}
	return nil
}

// send sends a request and returns the body of its answer.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://node"+path, body)
	if err != nil {
		return nil, fmt.Errorf("ask cleat-node: %w", err)
	}
	got, err := c.http.Do(r)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("ask cleat-node: %w", err)
	}
	if got.StatusCode == http.StatusOK {
		return got.Body, nil
	}
	defer got.Body.Close()
	e := &Error{}
	if err := json.NewDecoder(got.Body).Decode(e); err != nil {
		return nil, fmt.Errorf("ask cleat-node: %s", got.Status)
	}
	return nil, e
}

// Backup writes a copy of the registry, in the format of etcd's snapshots.
func (c *Client) Backup(ctx context.Context, to io.Writer) error {
	answer, err := c.send(ctx, http.MethodGet, "/backup", nil)
	if err != nil {
		return err
	}
	defer answer.Close()
	if _, err := io.Copy(to, answer); err != nil {
		return fmt.Errorf("copy the registry: %w", err)
	}
	return nil
}

// CreateNetwork creates a network. It returns when this host has it.
func (c *Client) CreateNetwork(ctx context.Context, n NewNetwork) error {
	return c.Do(ctx, http.MethodPost, "/networks", n, nil)
}

// ChangeNetwork replaces the spec of a network. It returns when this host has it.
func (c *Client) ChangeNetwork(ctx context.Context, name string, spec json.RawMessage) error {
	return c.Do(ctx, http.MethodPut, "/networks/"+name, NewNetwork{Name: name, Spec: spec}, nil)
}

// RemoveNetwork removes a network from all hosts. Unless force is set, no container of any host may be on it.
func (c *Client) RemoveNetwork(ctx context.Context, name string, force bool) error {
	path := "/networks/" + name
	if force {
		path += "?force=1"
	}
	return c.Do(ctx, http.MethodDelete, path, nil, nil)
}

// MoreAddresses gets this host another block of a network's addresses, or one that has an address if it is valid.
func (c *Client) MoreAddresses(ctx context.Context, network string, a netip.Addr) error {
	path := "/networks/" + network + "/blocks"
	if a.IsValid() {
		path += "?address=" + a.String()
	}
	return c.Do(ctx, http.MethodPost, path, nil, nil)
}

// Token makes an invitation.
func (c *Client) Token(ctx context.Context, t NewToken) (got Token, err error) {
	return got, c.Do(ctx, http.MethodPost, "/tokens", t, &got)
}

// RemoveHost removes a host from the cluster.
func (c *Client) RemoveHost(ctx context.Context, name string) error {
	return c.Do(ctx, http.MethodDelete, "/hosts/"+name, nil, nil)
}

// Leave takes this host out of the cluster. Unless force is set, no container of it may be on a network that spans hosts.
func (c *Client) Leave(ctx context.Context, force bool) error {
	path := "/leave"
	if force {
		path += "?force=1"
	}
	return c.Do(ctx, http.MethodPost, path, nil, nil)
}

// ChangeCluster changes settings of the cluster.
func (c *Client) ChangeCluster(ctx context.Context, to Cluster) error {
	return c.Do(ctx, http.MethodPut, "/cluster", to, nil)
}

// Rotate makes all hosts change to their next keys of WireGuard.
func (c *Client) Rotate(ctx context.Context) error {
	return c.Do(ctx, http.MethodPost, "/rotate", nil, nil)
}

// Explain has a host answer a question.
func (c *Client) Explain(ctx context.Context, q Question) (answer json.RawMessage, err error) {
	return answer, c.Do(ctx, http.MethodPost, "/explain", q, &answer)
}

// Status returns what the node knows.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	return s, c.Do(ctx, http.MethodGet, "/status", nil, &s)
}
