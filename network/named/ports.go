package named

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/statedir"
)

// A claim on a port of the host is a symbolic link whose target names the endpoint:
//
//	STATE/ports/tcp-31/8080=127.0.0.1 -> web/docker.api
//
// Claims of 256 ports are in one directory, so that those that overlap a new one are found
// quickly. They are made under one lock, because claims of different addresses may overlap.

// everyAddress is the address in the claim of a port on all addresses of the host.
const everyAddress = "*"

func (s Store) portDir(protocol string, port uint16) string {
	return s.Path("ports", fmt.Sprintf("%s-%d", protocol, port>>8))
}

func (s Store) portClaim(p Port, i uint16) string {
	address := everyAddress
	if p.HostAddr.IsValid() {
		address = p.HostAddr.String()
	}
	port := p.HostPort + i
	return filepath.Join(s.portDir(p.Protocol, port), strconv.Itoa(int(port))+"="+address)
}

func (e *Endpoint) portOwner() string { return e.Network + "/" + endpointID(e.Container) }

// claimPorts claims all ports of an endpoint, and chooses those that were left to us. Nothing
// is claimed if one is in use, by another endpoint or by a program of the host. all is e with
// other ports that it has as well; the ports are added to it, and it is recorded, before
// anything is claimed.
func (s *session) claimPorts(ctx context.Context, o *operation, n *Network, e, all *Endpoint) error {
	if len(e.Wanted.Ports) == 0 {
		return nil
	}
	unlock, err := s.store.lockPorts(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for i := range e.Wanted.Ports {
		p := &e.Wanted.Ports[i]
		for _, q := range e.Wanted.Ports[:i] {
			if p.HostPort != 0 && p.overlaps(q) {
				return badSpec("publish", p.String(), "overlaps "+q.String())
			}
		}
		if p.HostPort == 0 {
			if err := s.choosePort(p, n, e); err != nil {
				return err
			}
		} else if err := s.checkPort(*p, n, e); err != nil {
			return err
		}
	}
	all.Wanted.Ports = union(all.Wanted.Ports, e.Wanted.Ports)
	if err := o.record(record{Network: e.Network, Endpoint: all}); err != nil {
		return err
	}
	for _, p := range e.Wanted.Ports {
		for i := range p.Count {
			if err := s.claimPort(s.store.portClaim(p, i), e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) claimPort(path string, e *Endpoint) error {
	err := os.Symlink(e.portOwner(), path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("claim port: %w", err)
		}
		err = os.Symlink(e.portOwner(), path)
	}
	if errors.Is(err, fs.ErrExist) { // of this endpoint, as checkPort found
		return nil
	}
	if err != nil {
		return fmt.Errorf("claim port: %w", err)
	}
	return nil
}

// choosePort chooses free ports of the host, from those that programs use for outgoing
// connections as well (net.ipv4.ip_local_port_range), as Docker and Podman do.
func (s *session) choosePort(p *Port, n *Network, e *Endpoint) error {
	const first, last, tries = 32768, 60999, 200
	for range tries {
		p.HostPort = uint16(first + rand.IntN(last-first-int(p.Count)+2))
		if err := s.checkPort(*p, n, e); !errors.As(err, new(*PortTakenError)) {
			return err
		}
	}
	p.HostPort = 0
	return fmt.Errorf("no %d free ports of the host in a row were found in %d tries", p.Count, tries)
}

// checkPort returns a *PortTakenError if a port is in use.
func (s *session) checkPort(p Port, n *Network, e *Endpoint) error {
	for first := uint16(0); first < p.Count; { // one directory after the other
		port := p.HostPort + first
		if err := s.checkClaims(p, s.store.portDir(p.Protocol, port), e); err != nil {
			return err
		}
		first += 256 - port%256
	}
	if err := s.checkElsewhere(p); err != nil {
		return err
	}
	if e.Wanted.PortsReserved {
		return nil
	}
	return n.checkSockets(p)
}

// checkClaims looks for claims of other endpoints in a directory that overlap p.
func (s *session) checkClaims(p Port, dir string, e *Endpoint) error {
	claims, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read claims on ports: %w", err)
	}
	for _, c := range claims {
		q, ok := parseClaim(p.Protocol, c.Name())
		if !ok || !p.overlaps(q) {
			continue
		}
		owner, err := os.Readlink(filepath.Join(dir, c.Name()))
		if err != nil || owner == e.portOwner() {
			continue
		}
		network, id, _ := strings.Cut(owner, "/")
		return &PortTakenError{Port: p, HostPort: q.HostPort, Owner: fmt.Sprintf("%s on network %s", s.containerOf(network, id), network)}
	}
	return nil
}

// parseClaim parses the name of a claim.
func parseClaim(protocol, name string) (Port, bool) {
	text, address, ok := strings.Cut(name, "=")
	port, err := strconv.ParseUint(text, 10, 16)
	p := Port{Protocol: protocol, HostPort: uint16(port), Count: 1}
	if !ok || err != nil {
		return p, false
	}
	if address != everyAddress {
		p.HostAddr, err = netip.ParseAddr(address)
	}
	return p, err == nil
}

// claimed returns those ports that an endpoint has claimed. Of an operation that failed, others
// may have them.
func (s *session) claimed(e *Endpoint, ports []Port) []Port {
	return slices.DeleteFunc(slices.Clone(ports), func(p Port) bool {
		for i := range p.Count {
			if owner, err := os.Readlink(s.store.portClaim(p, i)); err != nil || owner != e.portOwner() {
				return true
			}
		}
		return false
	})
}

// releasePorts removes the claims of an endpoint on ports.
func (s *session) releasePorts(ctx context.Context, e *Endpoint) error {
	return s.releaseThese(ctx, e, e.Wanted.Ports)
}

func (s *session) releaseThese(ctx context.Context, e *Endpoint, ports []Port) error {
	if len(ports) == 0 {
		return nil
	}
	unlock, err := s.store.lockPorts(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, p := range ports {
		if p.HostPort == 0 {
			continue // none was chosen yet
		}
		for i := range p.Count {
			path := s.store.portClaim(p, i)
			if owner, err := os.Readlink(path); err == nil && owner == e.portOwner() {
				if err := statedir.Remove(path); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
