package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"cleat/overlay/registry"
	"cleat/overlay/trust"
)

// maxRequest bounds what strangers can send, in bytes.
const maxRequest = 64 << 10

// serveJoin answers a host that wants to join.
func (n *Node) serveJoin(ctx context.Context, c net.Conn, binding []byte) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeWithin)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var r joinRequest
	if err := json.NewDecoder(io.LimitReader(c, maxRequest)).Decode(&r); err != nil {
		return fmt.Errorf("read its request to join: %w", err)
	}
	answer, err := n.accept(ctx, r, binding)
	if err != nil {
		answer = &joinAnswer{Error: err.Error(), Hint: hintFor(err)}
		err = fmt.Errorf("host %.80q: %w", r.Host.Name, err)
	}
	_ = json.NewEncoder(c).Encode(answer)
	return err
}

// hintFor returns what to type when a host can't join.
func hintFor(err error) string {
	var taken *registry.TakenError
	var address *AddressTakenError
	switch {
	case errors.As(err, &taken):
		return "choose another name (--name), or remove that host on another host of the cluster: cleat-node remove NAME"
	case errors.As(err, &address):
		return "choose another address (--address), or remove that host: cleat-node remove " + address.Host
	case errors.Is(err, errToken):
		return "make a new token on a host of the cluster: cleat-node token"
	case errors.Is(err, errBusy):
		return "see which hosts are missing: cleat-node status, on a host of the cluster"
	}
	return ""
}

var (
	errToken = errors.New("the token is not valid, or has expired")
	errBusy  = errors.New("its registry does not answer")
)

// AddressTakenError means that another host has the address of a host that wants to join.
type AddressTakenError struct {
	Host    string
	Address netip.Addr
}

func (e *AddressTakenError) Error() string {
	return fmt.Sprintf("host %s has its address %s already", e.Host, e.Address)
}

// checkToken returns the token of a request that proves that its sender has it. Strangers learn nothing else
// from the error.
func (n *Node) checkToken(ctx context.Context, r joinRequest, binding []byte) (registry.Token, error) {
	t, err := n.registry.Token(ctx, r.Token)
	switch {
	case errors.As(err, new(*registry.NotFoundError)):
		return t, errToken
	case err != nil:
		n.problem("join", err)
		return t, errBusy
	case !trust.Proves(r.Proof, t.Hash, trust.Joins, binding) || n.ID().Now().After(t.Expires):
		return t, errToken
	}
	n.problem("join", nil)
	return t, nil
}

// checkHost returns an error if a host can't be one of the cluster with what it says about itself.
func checkHost(h registry.Host) error {
	const minMTU, maxMTU = 576, 65535 // of IPv4 (RFC 791)
	if err := errors.Join(CheckHostName(h.Name), CheckDataplane(h.Dataplane)); err != nil {
		return err
	}
	a := h.Address
	if !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("other hosts can't reach %s", a)
	}
	if h.Port == 0 {
		return errors.New("it has no port")
	}
	if mac, err := net.ParseMAC(h.MAC); err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return fmt.Errorf("%.40q is no Ethernet address of a host", h.MAC)
	}
	if h.MTU < minMTU || h.MTU > maxMTU {
		return fmt.Errorf("the MTU of the device with %s is %d; want %d to %d", a, h.MTU, minMTU, maxMTU)
	}
	return nil
}

// accept adds a host with a valid token to the cluster, and signs its certificate.
func (n *Node) accept(ctx context.Context, r joinRequest, binding []byte) (*joinAnswer, error) {
	t, err := n.checkToken(ctx, r, binding)
	if err != nil {
		return nil, err
	}
	authority, err := n.dir.authority()
	if err != nil {
		return nil, err
	}
	if authority == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		return &joinAnswer{Members: gates(n.mirror.voters())}, nil
	}
	h := r.Host
	if err := checkHost(h); err != nil {
		return nil, err
	}
	hosts, err := n.registry.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	for _, other := range hosts {
		if other.Name == h.Name {
			return nil, &registry.TakenError{What: "host " + h.Name}
		}
		if other.Address == h.Address {
			return nil, &AddressTakenError{other.Name, h.Address}
		}
	}
	answer := &joinAnswer{Proof: trust.Proof(t.Hash, trust.Accepts, binding), Now: n.ID().Now()}
	n.mu.Lock()
	m := n.mirror.copy()
	n.mu.Unlock()
	answer.Cluster, answer.Hosts, answer.Networks = m.Cluster, m.Hosts, m.Networks
	if r.Check {
		return answer, nil
	}
	cert, err := authority.Sign(r.Request, h.Name, n.ID().Now())
	if err != nil {
		return nil, err
	}
	h.WireGuard = registry.WireGuard{} // it registers its keys later
	h.Version, h.Pin, h.Member, h.Votes, h.Joined = 1, trust.Pin(cert), false, false, time.Now().UTC().Truncate(time.Second)
	if err := n.registry.AddHost(ctx, h); err != nil {
		return nil, err
	}
	n.cfg.Log("host %s joined, at %s", h.Name, h.Address)
	answer.Hosts[h.Name], answer.Cert = h, cert.Raw
	return answer, nil
}
