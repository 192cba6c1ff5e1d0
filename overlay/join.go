package overlay

import (
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
	"sync"
	"time"

	"cleat/internal/statedir"
	"cleat/overlay/control"
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
}

var hostName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })

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
	d := dir(path)
	if err := errors.Join(CheckHostName(self.Host), os.MkdirAll(path, 0o700), os.RemoveAll(d.path(registryDir))); err != nil {
		return nil, err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("choose the cluster's id: %w", err)
	}
	s := &Settings{Version: 1, Host: self.Host, Cluster: hex.EncodeToString(id[:]), Address: self.Address, Port: self.Port, First: true}
	var err error
	if s.MAC, err = randomMAC(); err != nil {
		return nil, err
	}
	now := time.Now()
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
	m.Cluster = registry.Cluster{ID: s.Cluster, Created: now.UTC().Truncate(time.Second), VNI: DefaultVNI}
	m.Hosts[self.Host] = registry.Host{Name: self.Host, Pin: identity.Pin(), Address: self.Address, Port: self.Port, MAC: s.MAC, MTU: self.MTU, Member: true, Votes: true, Joined: m.Cluster.Created}
	err = errors.Join(d.writeAuthority(authority), d.writeIdentity(identity), statedir.WriteJSON(d.path(mirrorFile), m), os.MkdirAll(d.path(registryDir), 0o700))
	if err != nil {
		return nil, err
	}
	return s, statedir.WriteJSON(d.path(settingsFile), s) // last: with it the host belongs to the cluster
}

// joinRequest is what a host that joins sends.
type joinRequest struct {
	Token   string        `json:"token"` // its id
	Secret  []byte        `json:"secret"`
	Host    registry.Host `json:"host"`
	Request []byte        `json:"request"` // for a certificate
}

// joinAnswer is the answer.
type joinAnswer struct {
	Error    string                      `json:"error,omitempty"`
	Hint     string                      `json:"hint,omitempty"`
	Members  []netip.AddrPort            `json:"members,omitempty"` // to ask instead: this host can't sign
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

// Join makes this host one of the cluster of a token. check is called with the cluster's networks; its error
// ends the attempt before this host changes anything. Join only writes files; a Node does the rest.
func Join(ctx context.Context, path string, self Self, token trust.Token, check func(registry.Network) error) (*Settings, error) {
	d := dir(path)
	if err := errors.Join(CheckHostName(self.Host), os.MkdirAll(path, 0o700)); err != nil {
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
	r := joinRequest{Token: token.ID, Secret: token.Secret[:], Request: request,
		Host: registry.Host{Name: self.Host, Address: self.Address, Port: self.Port, MAC: mac, MTU: self.MTU}}
	answer, authority, err := ask(ctx, token, r)
	if err != nil {
		return nil, err
	}
	for _, n := range answer.Networks {
		if err := check(n); err != nil {
			return nil, err
		}
	}
	cert, err := x509.ParseCertificate(answer.Cert)
	if err != nil {
		return nil, fmt.Errorf("read this host's certificate: %w", err)
	}
	if identity, err = identity.Certified(cert, authority); err != nil {
		return nil, err
	}
	m := newMirror()
	m.Cluster, m.Hosts, m.Networks = answer.Cluster, answer.Hosts, answer.Networks
	s := &Settings{Version: 1, Host: self.Host, Cluster: answer.Cluster.ID, Address: self.Address, Port: self.Port, MAC: mac}
	if err := errors.Join(os.RemoveAll(d.path(registryDir)), os.RemoveAll(d.path(authorityFile)), d.writeIdentity(identity), statedir.WriteJSON(d.path(mirrorFile), m)); err != nil {
		return nil, err
	}
	return s, statedir.WriteJSON(d.path(settingsFile), s)
}

// ask sends a request to the hosts of a token, and to those that they name, until one signs or refuses.
func ask(ctx context.Context, token trust.Token, r joinRequest) (*joinAnswer, *x509.Certificate, error) {
	left, asked := token.Addresses, map[netip.AddrPort]bool{}
	var errs []error
	for len(left) > 0 {
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
		case answer.Error != "":
			return nil, nil, &RefusedError{answer.Error, answer.Hint}
		case answer.Members != nil:
			left = append(left, answer.Members...)
		default:
			return answer, authority, nil
		}
	}
	return nil, nil, fmt.Errorf("no host of the cluster answers: %w", errors.Join(errs...))
}

// exchangeWithin bounds a request to another host.
const exchangeWithin = 15 * time.Second

func askOne(ctx context.Context, token trust.Token, at netip.AddrPort, r joinRequest) (*joinAnswer, *x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin)
	defer cancel()
	c, authority, err := gate.DialToJoin(ctx, token, at)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return nil, nil, fmt.Errorf("ask host at %s: %w", at, err)
	}
	var answer joinAnswer
	if err := json.NewDecoder(c).Decode(&answer); err != nil {
		return nil, nil, fmt.Errorf("ask host at %s: %w", at, err)
	}
	return &answer, authority, nil
}

// maxRequest bounds what strangers can send, in bytes.
const maxRequest = 64 << 10

// serveJoin answers a host that wants to join.
func (n *Node) serveJoin(ctx context.Context, c net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var r joinRequest
	if err := json.NewDecoder(io.LimitReader(c, maxRequest)).Decode(&r); err != nil {
		return
	}
	answer, err := n.accept(ctx, r)
	if err != nil {
		n.cfg.Log("refused host %q at %s: %v", r.Host.Name, c.RemoteAddr(), err)
		answer = &joinAnswer{Error: err.Error()}
		var taken *registry.TakenError
		switch {
		case errors.As(err, &taken):
			answer.Hint = "choose another name (--name), or remove that host from the cluster: cleat-node remove " + r.Host.Name
		case errors.Is(err, errToken):
			answer.Hint = "make a new token on a host of the cluster: cleat-node token"
		}
	}
	_ = json.NewEncoder(c).Encode(answer)
}

var errToken = errors.New("the token is not valid, or has expired")

// accept adds a host with a valid token to the cluster, and signs its certificate.
func (n *Node) accept(ctx context.Context, r joinRequest) (*joinAnswer, error) {
	authority, err := n.dir.authority()
	if err != nil {
		return nil, err
	}
	if authority == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		return &joinAnswer{Members: gates(n.mirror.voters())}, nil
	}
	t, err := n.registry.Token(ctx, r.Token)
	if errors.As(err, new(*registry.NotFoundError)) || err == nil && (!trust.SameHash(t.Hash, trust.HashSecret(r.Secret)) || time.Now().After(t.Expires)) {
		return nil, errToken
	}
	if err != nil {
		return nil, err
	}
	h := r.Host
	if err := CheckHostName(h.Name); err != nil {
		return nil, err
	}
	n.mu.Lock()
	for _, other := range n.mirror.Hosts {
		if other.Address == h.Address && other.Name != h.Name {
			err = fmt.Errorf("host %s has its address %s already", other.Name, h.Address)
		}
	}
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	cert, err := authority.Sign(r.Request, h.Name, time.Now())
	if err != nil {
		return nil, err
	}
	h.Pin, h.Member, h.Votes, h.Joined = trust.Pin(cert), false, false, time.Now().UTC().Truncate(time.Second)
	if err := n.registry.AddHost(ctx, h); err != nil {
		return nil, err
	}
	n.cfg.Log("host %s joined, at %s", h.Name, h.Address)
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.mirror.copy()
	h.Version = 1
	m.Hosts[h.Name] = h
	return &joinAnswer{Cluster: m.Cluster, Hosts: m.Hosts, Networks: m.Networks, Cert: cert.Raw}, nil
}

// hostRequest is what a host of the cluster asks another one for.
type hostRequest struct {
	Authority bool   `json:"authority,omitempty"` // the authority's key, for a new member of the registry
	Renew     []byte `json:"renew,omitempty"`     // a new certificate for this request
	Lend      *loan  `json:"lend,omitempty"`
	Moved     *moved `json:"moved,omitempty"`  // the asking host has another address
	Report    bool   `json:"report,omitempty"` // what the host measures, and what does not work there
}

type hostAnswer struct {
	Error     string `json:"error,omitempty"`
	Authority []byte `json:"authority,omitempty"` // PEM
	Cert      []byte `json:"certificate,omitempty"`
	Loan      *loan  `json:"loan,omitempty"`

	Report *control.Report `json:"report,omitempty"`
}

// serveHost answers another host of the cluster.
func (n *Node) serveHost(ctx context.Context, host string, c net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var r hostRequest
	if err := json.NewDecoder(io.LimitReader(c, maxRequest)).Decode(&r); err != nil {
		return
	}
	answer, err := n.answer(ctx, host, r)
	if err != nil {
		n.cfg.Log("request of host %s: %v", host, err)
		answer = &hostAnswer{Error: err.Error()}
	}
	_ = json.NewEncoder(c).Encode(answer)
}

func (n *Node) answer(ctx context.Context, host string, r hostRequest) (*hostAnswer, error) {
	if r.Moved != nil {
		n.hostMoved(host, *r.Moved)
		return &hostAnswer{}, nil
	}
	if r.Lend != nil {
		l, err := n.lend(ctx, host, *r.Lend)
		return &hostAnswer{Loan: l}, err
	}
	if r.Report {
		own := n.report(ctx)
		return &hostAnswer{Report: &own}, nil
	}
	authority, err := n.dir.authority()
	if err != nil {
		return nil, err
	}
	if authority == nil {
		return nil, errors.New("this host does not have the cluster's authority")
	}
	if r.Renew != nil {
		cert, err := authority.Sign(r.Renew, host, time.Now())
		if err != nil {
			return nil, err
		}
		return &hostAnswer{Cert: cert.Raw}, nil
	}
	n.mu.Lock()
	h := n.mirror.Hosts[host]
	n.mu.Unlock()
	if !h.Member {
		return nil, fmt.Errorf("host %s is no member of the registry", host)
	}
	text, err := authority.PEM()
	return &hostAnswer{Authority: text}, err
}

// askMembers sends a request to the members of the registry, until one answers it.
func (n *Node) askMembers(ctx context.Context, r hostRequest) (*hostAnswer, error) {
	n.mu.Lock()
	members := n.mirror.members()
	n.mu.Unlock()
	err := errors.New("the registry has no other member")
	for _, h := range members {
		if h.Name == n.settings.Host {
			continue
		}
		var answer *hostAnswer
		if answer, err = n.askHost(ctx, h, r); err == nil {
			return answer, nil
		}
	}
	return nil, err
}

func (n *Node) askHost(ctx context.Context, h registry.Host, r hostRequest) (*hostAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin)
	defer cancel()
	c, err := gate.Dial(ctx, n.ID(), h.Gate().String(), gate.Host, n.admit)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return nil, fmt.Errorf("ask host %s: %w", h.Name, err)
	}
	var answer hostAnswer
	if err := json.NewDecoder(c).Decode(&answer); err != nil {
		return nil, fmt.Errorf("ask host %s: %w", h.Name, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("ask host %s: %s", h.Name, answer.Error)
	}
	return &answer, nil
}

// fetchAuthority gets the cluster's authority, which members of the registry have.
func (n *Node) fetchAuthority(ctx context.Context) error {
	if have, err := n.dir.authority(); err != nil || have != nil {
		return err
	}
	answer, err := n.askMembers(ctx, hostRequest{Authority: true})
	if err != nil {
		return err
	}
	a, err := trust.ParseAuthority(answer.Authority)
	if err != nil {
		return err
	}
	if !a.Certificate.Equal(n.ID().Authority) {
		return errors.New("the authority of another host is not the one of this host")
	}
	return n.dir.writeAuthority(a)
}

// renew gets this host a new certificate when the one that it has is about to expire.
func (n *Node) renew(ctx context.Context) error {
	id := n.ID()
	if !id.NeedsRenewal(time.Now()) {
		return nil
	}
	request, err := id.Request()
	if err != nil {
		return err
	}
	authority, err := n.dir.authority()
	if err != nil {
		return err
	}
	var cert *x509.Certificate
	if authority != nil {
		cert, err = authority.Sign(request, id.Host, time.Now())
	} else {
		var answer *hostAnswer
		if answer, err = n.askMembers(ctx, hostRequest{Renew: request}); err == nil {
			cert, err = x509.ParseCertificate(answer.Cert)
		}
	}
	if err != nil {
		return fmt.Errorf("renew this host's certificate: %w", err)
	}
	if id, err = id.Certified(cert, id.Authority); err != nil {
		return err
	}
	if err := n.dir.writeIdentity(id); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.identity = id
	return nil
}
