package overlay

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"cleat/internal/statedir"
	"cleat/overlay/gate"
	"cleat/overlay/registry"
	"cleat/overlay/trust"
)

// DefaultVNI is the VXLAN network identifier of a cluster's hosts.
const DefaultVNI = 7790

// DefaultPort is the TCP port of gates.
const DefaultPort = 7790

// Self is what a host says about itself.
type Self struct {
	Host    string
	Address netip.Addr // at which the other hosts reach it
	Port    uint16
	MTU     int // of the device with the address, in bytes
	// Dataplane is that of the cluster, for its first host, and of the host, for others; "": a default.
	Dataplane string
	Etcd      *registry.External // the host has access to an etcd that is the registry; nil: hosts run it
	// Encrypt is for the first host: everything between hosts is encrypted.
	Encrypt bool
	// Can returns an error if the kernel lacks what a way needs, like that of an Encrypter; nil: nothing is needed.
	Can func(way string) error
}

// can returns an error if this host can't take part in a cluster.
func (s Self) can(c registry.Cluster) error {
	way := cmp.Or(s.Dataplane, c.Dataplane)
	if c.Encryption != "" {
		if err := CheckEncrypted(s.Dataplane); err != nil {
			return err
		}
		way = WireGuardWay
	}
	if way == WireGuardWay {
		if err := CheckPort(s.Port); err != nil {
			return err
		}
	}
	if s.Can == nil {
		return nil
	}
	return s.Can(way)
}

var hostName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })

// CheckPort returns an error if a host's gate can't have a port: hosts use it for UDP too, and the next two for WireGuard.
func CheckPort(port uint16) error {
	for p := int(port); p <= int(port)+2; p++ {
		switch {
		case p == 0, p > 65535:
			return fmt.Errorf("port %d: want 1 to 65533, because hosts use the next two, too", port)
		case p == vxlanPort, p == genevePort, p >= FirstTunnelPort && p <= LastTunnelPort:
			return fmt.Errorf("port %d: hosts use it and the next two, and UDP port %d for other packets", port, p)
		}
	}
	return nil
}

// UDP ports of packets between hosts (RFC 7348, RFC 8926).
const (
	vxlanPort  = 4789
	genevePort = 6081
)

// CheckHostName returns an error if no host can have a name.
func CheckHostName(name string) error {
	if !hostName().MatchString(name) {
		return fmt.Errorf("host name %q: want 1 to 63 of a-z, 0-9 and '-', with a letter or digit first and last", name)
	}
	return nil
}

// randomMAC returns a locally administered Ethernet address.
func randomMAC() (string, error) {
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("choose an Ethernet address: %w", err)
	}
	b[0] = b[0]&^1 | 2
	return net.HardwareAddr(b[:]).String(), nil
}

// Create makes a new cluster of which this host is the first. It only writes files; a Node does the rest.
func Create(path string, self Self) (*Settings, error) {
	d, now := dir(path), time.Now()
	cluster := registry.Cluster{Created: now.UTC().Truncate(time.Second), VNI: DefaultVNI, Dataplane: self.Dataplane, External: self.Etcd != nil}
	if self.Encrypt {
		cluster.Encryption, cluster.Generation, cluster.Rotated = registry.EncryptionOn, 1, cluster.Created
	}
	if err := errors.Join(CheckHostName(self.Host), CheckDataplane(self.Dataplane), self.can(cluster)); err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(path, 0o700), os.RemoveAll(d.path(registryDir)), d.writeRing(ring{})); err != nil {
		return nil, err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("choose the cluster's id: %w", err)
	}
	cluster.ID = hex.EncodeToString(id[:])
	s := &Settings{Version: 1, Host: self.Host, Cluster: cluster.ID, Address: self.Address, Port: self.Port, First: true, Etcd: self.Etcd}
	var err error
	if s.MAC, err = randomMAC(); err != nil {
		return nil, err
	}
	authority, err := trust.NewAuthority(s.Cluster, now)
	if err != nil {
		return nil, err
	}
	identity, err := trust.NewIdentity(self.Host)
	if err == nil {
		identity, err = identity.SignedBy(authority, now)
	}
	if err != nil {
		return nil, err
	}
	m := newMirror()
	m.Cluster = cluster
	m.Hosts[self.Host] = registry.Host{Name: self.Host, Pin: identity.Pin(), Address: self.Address, Port: self.Port, MAC: s.MAC, MTU: self.MTU, Member: true, Votes: true, Joined: m.Cluster.Created}
	err = errors.Join(d.writeAuthority(authority), d.writeIdentity(identity), statedir.WriteJSON(d.path(mirrorFile), m))
	if self.Etcd == nil {
		err = errors.Join(err, os.MkdirAll(d.path(registryDir), 0o700))
	}
	if err != nil {
		return nil, err
	}
	return s, statedir.WriteJSON(d.path(settingsFile), s) // last: with it the host belongs to the cluster
}

// joinRequest is what a host that joins sends.
type joinRequest struct {
	Token   string        `json:"token"` // its id
	Proof   []byte        `json:"proof"` // that this host has the token (trust.Proof)
	Check   bool          `json:"check"` // only ask: whether the host can join, and which networks there are
	Host    registry.Host `json:"host"`
	Request []byte        `json:"request"` // for a certificate
}

// joinAnswer is the answer.
type joinAnswer struct {
	Error    string                      `json:"error,omitempty"`
	Hint     string                      `json:"hint,omitempty"`
	Members  []netip.AddrPort            `json:"members,omitempty"` // to ask instead: this host can't sign
	Proof    []byte                      `json:"proof,omitempty"`   // that the answer is of the token's cluster
	Now      time.Time                   `json:"now,omitzero"`      // by the clock of the host that answers
	Cluster  registry.Cluster            `json:"cluster"`
	Hosts    map[string]registry.Host    `json:"hosts"`
	Cert     []byte                      `json:"certificate"` // DER
	Networks map[string]registry.Network `json:"networks"`
}

// RefusedError is why a cluster does not accept a host.
type RefusedError struct {
	Text string
	Help string // what to type next
}

func (e *RefusedError) Error() string { return "the cluster refuses this host: " + e.Text }

// Hint returns what to type next; it may be empty.
func (e *RefusedError) Hint() string { return e.Help }

// UnansweredError means that no host of a token's cluster could be asked.
type UnansweredError struct {
	Err   error
	Other bool // the hosts that answered are of another cluster
}

func (e *UnansweredError) Error() string {
	return "no host of the cluster answers: " + strings.ReplaceAll(e.Err.Error(), "\n", "; ")
}
func (e *UnansweredError) Unwrap() error { return e.Err }

// Hint returns what to type next.
func (e *UnansweredError) Hint() string {
	if e.Other {
		return "make a new token on a host of the cluster: cleat-node token"
	}
	return "is cleat-node up there, and does a firewall let its port through? `cleat-node status` on a host of the cluster"
}

// Join makes this host one of the cluster of a token. check is called with the cluster and each network; its error
// ends the attempt before anything has changed, here or in the cluster. Join only writes files; a Node does the
// rest.
func Join(ctx context.Context, path string, self Self, token trust.Token, check func(State, registry.Network) error) (*Settings, error) {
	d := dir(path)
	if err := errors.Join(CheckHostName(self.Host), CheckDataplane(self.Dataplane)); err != nil {
		return nil, err
	}
	identity, err := trust.NewIdentity(self.Host)
	if err != nil {
		return nil, err
	}
	request, err := identity.Request()
	if err != nil {
		return nil, err
	}
	mac, err := randomMAC()
	if err != nil {
		return nil, err
	}
	r := joinRequest{Token: token.ID, Request: request, Check: true,
		Host: registry.Host{Name: self.Host, Address: self.Address, Port: self.Port, MAC: mac, MTU: self.MTU, Dataplane: self.Dataplane}}
	answer, _, err := ask(ctx, token, r)
	if err != nil {
		return nil, err
	}
	if err := self.can(answer.Cluster); err != nil {
		return nil, err
	}
	for _, n := range answer.Networks {
		if err := check(answer.joining(r.Host), n); err != nil {
			return nil, err
		}
	}
	if ahead := answer.Now.Sub(identity.Now()); !answer.Now.IsZero() && (ahead > mostAhead || -ahead > mostBehind) {
		return nil, &RefusedError{fmt.Sprintf("its clock says %s UTC, and this host's %s", answer.Now.UTC().Format(time.DateTime), identity.Now().UTC().Format(time.DateTime)),
			"set the clock that is wrong; timedatectl shows it"}
	}
	if err := checkAccess(ctx, self.Etcd, answer.Cluster); err != nil {
		return nil, err
	}
	r.Check = false
	answer, authority, err := ask(ctx, token, r)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(answer.Cert)
	if err != nil {
		return nil, fmt.Errorf("read this host's certificate: %w", err)
	}
	if identity, err = identity.Certified(cert, authority); err != nil {
		return nil, err
	}
	if !identity.Valid(identity.Now()) {
		return nil, &ClocksError{self.Host, cert, identity.Now()}
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	m := newMirror()
	m.Cluster, m.Hosts, m.Networks = answer.Cluster, answer.Hosts, answer.Networks
	s := &Settings{Version: 1, Host: self.Host, Cluster: answer.Cluster.ID, Address: self.Address, Port: self.Port, MAC: mac, Dataplane: self.Dataplane, Etcd: self.Etcd, Incarnation: answer.Cluster.Incarnation}
	if err := errors.Join(os.RemoveAll(d.path(registryDir)), os.RemoveAll(d.path(authorityFile)), d.writeRing(ring{}), d.writeIdentity(identity), statedir.WriteJSON(d.path(mirrorFile), m)); err != nil {
		return nil, err
	}
	return s, statedir.WriteJSON(d.path(settingsFile), s)
}

// A host does not join if the clock of the one that would sign its certificate is further ahead, or behind: the
// certificate would not be valid here.
const (
	mostAhead  = 23 * time.Hour
	mostBehind = 300 * 24 * time.Hour
)

// maxAsked bounds the hosts that are asked: those of the token, and those that they name.
const maxAsked = 24

// ask sends a request to the hosts of a token, and to those that they name, until one signs or refuses.
func ask(ctx context.Context, token trust.Token, r joinRequest) (*joinAnswer, *x509.Certificate, error) {
	left, asked := token.Addresses, map[netip.AddrPort]bool{}
	var errs []error
	others := 0
	for len(left) > 0 && len(asked) < maxAsked {
		at := left[0]
		left = left[1:]
		if asked[at] {
			continue
		}
		asked[at] = true
		answer, authority, err := askOne(ctx, token, at, r)
		switch {
		case err != nil:
			errs = append(errs, err)
			if errors.As(err, new(*gate.OtherClusterError)) {
				others++
			}
		case answer.Error != "":
			return nil, nil, &RefusedError{answer.Error, answer.Hint}
		case answer.Members != nil:
			left = append(left, answer.Members...)
		default:
			return answer, authority, nil
		}
	}
	return nil, nil, &UnansweredError{errors.Join(errs...), others > 0 && others == len(errs)}
}

// exchangeWithin bounds a request to another host.
const exchangeWithin = 15 * time.Second

// maxAnswer bounds what the cluster can send to a host that joins, in bytes: 10,000 hosts and networks.
const maxAnswer = 16 << 20

func askOne(ctx context.Context, token trust.Token, at netip.AddrPort, r joinRequest) (*joinAnswer, *x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin)
	defer cancel()
	c, err := gate.DialToJoin(ctx, token, at)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	r.Proof = trust.Proof(token.Hash(), trust.Joins, c.Binding)
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return nil, nil, fmt.Errorf("ask host at %s: %w", at, err)
	}
	var answer joinAnswer
	if err := json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&answer); err != nil {
		return nil, nil, fmt.Errorf("ask host at %s: %w", at, err)
	}
	// Whoever has a certificate of the cluster could answer, also a host that was removed.
	if answer.Error == "" && answer.Members == nil && !trust.Proves(answer.Proof, token.Hash(), trust.Accepts, c.Binding) {
		return nil, nil, fmt.Errorf("ask host at %s: it does not know the token", at)
	}
	return &answer, c.Authority, nil
}
