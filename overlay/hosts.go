package overlay

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"cleat/overlay/control"
	"cleat/overlay/gate"
	"cleat/overlay/registry"
	"cleat/overlay/trust"
)

// hostRequest is what a host of the cluster asks another one for.
type hostRequest struct {
	Authority bool   `json:"authority,omitempty"` // the authority's key, for a new member of the registry
	Renew     []byte `json:"renew,omitempty"`     // a new certificate for this request
	Lend      *loan  `json:"lend,omitempty"`
	Moved     *moved `json:"moved,omitempty"` // the asking host has another address
	Clock     bool   `json:"clock,omitempty"` // what the time is
	Leave     bool   `json:"leave,omitempty"` // the asking host leaves the cluster
	// Restored says that the asking host has a registry that was restored from a backup.
	Restored *restoredBy `json:"restored,omitempty"`
	Report   bool        `json:"report,omitempty"` // what the host measures, and what does not work there
	// Explain is a question about a container of the asked host.
	Explain json.RawMessage `json:"explain,omitempty"`
	// Voters asks which hosts have the members of the registry.
	Voters bool `json:"voters,omitempty"`
}

// maxHostAnswer bounds what this host reads of an answer, in bytes. A report of 1,000 containers and as many connections
// has 300 kB.
const maxHostAnswer = 4 << 20

type hostAnswer struct {
	Error     string `json:"error,omitempty"`
	Authority []byte `json:"authority,omitempty"` // PEM
	Cert      []byte `json:"certificate,omitempty"`
	Loan      *loan  `json:"loan,omitempty"`

	Report    *control.Report `json:"report,omitempty"`
	Explained json.RawMessage `json:"explained,omitempty"`
	Clock     time.Time       `json:"clock,omitzero"`
	Voters    []registry.Host `json:"voters,omitempty"`
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
	if r.Clock {
		return &hostAnswer{Clock: n.ID().Now()}, nil
	}
	if r.Leave {
		return &hostAnswer{}, n.hostLeaves(ctx, host)
	}
	if r.Restored != nil {
		return &hostAnswer{}, n.hostRestored(host, *r.Restored)
	}
	if r.Voters {
		n.mu.Lock()
		defer n.mu.Unlock()
		return &hostAnswer{Voters: n.mirror.voters()}, nil
	}
	if r.Lend != nil {
		l, err := n.lend(ctx, host, *r.Lend)
		return &hostAnswer{Loan: l}, err
	}
	if r.Report {
		own := n.report(ctx)
		return &hostAnswer{Report: &own}, nil
	}
	if r.Explain != nil {
		got, err := n.explainOwn(ctx, r.Explain)
		return &hostAnswer{Explained: got}, err
	}
	authority, err := n.dir.authority()
	if err != nil {
		return nil, err
	}
	if authority == nil {
		return nil, errors.New("this host does not have the cluster's authority")
	}
	n.mu.Lock()
	h := n.mirror.Hosts[host]
	n.mu.Unlock()
	if r.Renew != nil {
		pin, err := trust.RequestPin(r.Renew)
		if err != nil {
			return nil, err
		}
		if pin != h.Pin {
			return nil, fmt.Errorf("host %s wants a certificate for another key than its own", host)
		}
		cert, err := authority.Sign(r.Renew, host, n.ID().Now())
		if err != nil {
			return nil, err
		}
		return &hostAnswer{Cert: cert.Raw}, nil
	}
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

// dialHost connects to another host, and to no other one that answers at its address.
func (n *Node) dialHost(ctx context.Context, h registry.Host, protocol string) (net.Conn, error) {
	return n.gate.Dial(ctx, h.Gate().String(), protocol, func(host, pin string) error {
		if host != h.Name {
			return fmt.Errorf("it is host %s, not %s", host, h.Name)
		}
		return n.admit(host, pin)
	})
}

func (n *Node) askHost(ctx context.Context, h registry.Host, r hostRequest) (*hostAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin)
	defer cancel()
	c, err := n.dialHost(ctx, h, gate.Host)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return nil, fmt.Errorf("ask host %s: %w", h.Name, err)
	}
	var answer hostAnswer
	if err := json.NewDecoder(io.LimitReader(c, maxHostAnswer)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("ask host %s: %w", h.Name, err)
	}
	if answer.Error != "" {
		return nil, &answerError{h.Name, answer.Error}
	}
	return &answer, nil
}

// answerError is another host's answer that it does not do what it was asked for.
type answerError struct{ host, reason string }

func (e *answerError) Error() string { return fmt.Sprintf("ask host %s: %s", e.host, e.reason) }

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
	if n.isRemoved() || !id.NeedsRenewal(id.Now()) {
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
		cert, err = authority.Sign(request, id.Host, id.Now())
	} else {
		var answer *hostAnswer
		if answer, err = n.askMembers(ctx, hostRequest{Renew: request}); err == nil {
			cert, err = x509.ParseCertificate(answer.Cert)
		}
	}
	if err != nil {
		return fmt.Errorf("renew this host's certificate, which is valid until %s: %w", id.Certificate.NotAfter.UTC().Format(time.DateTime), err)
	}
	if id, err = id.Certified(cert, id.Authority); err != nil {
		return err
	}
	if !id.Valid(id.Now()) {
		return &ClocksError{cert.Subject.CommonName, cert, id.Now()}
	}
	if err := n.dir.writeIdentity(id); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.identity = id
	return nil
}
