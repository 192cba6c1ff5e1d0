package named

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cleat/internal/statedir"
	"cleat/network/ipam"
)

// abandoned reports whether an endpoint is neither connected, nor being connected or disconnected,
// so that nobody needs what it has claimed. With the lock on RUN/netops held it stays so. Without,
// whoever asks must look at the claim once more, because a disconnect may have just ended.
func (s *session) abandoned(network, id string) bool {
	if s.store.busy(network, id) {
		return false
	}
	_, err := os.Lstat(s.store.endpointFile(network, id))
	return errors.Is(err, fs.ErrNotExist)
}

// abandonedPort is abandoned for the claim on a port, which an endpoint that is connected may not
// need any more.
func (s *session) abandonedPort(path, network, id string) bool {
	if s.abandoned(network, id) {
		return true
	}
	e, err := s.store.Endpoint(network, id)
	return err == nil && !s.store.busy(network, id) && !s.store.portClaimsOf(e)[path]
}

// portClaimsOf returns the paths of the claims of an endpoint that it needs.
func (s Store) portClaimsOf(e *Endpoint) map[string]bool {
	paths := map[string]bool{}
	for _, p := range e.Wanted.Ports {
		for i := range p.Count {
			paths[s.portClaim(p, i)] = true
		}
	}
	return paths
}

// abandonedPorts calls f for each claim on a port that seems to be abandoned. There may be ten thousand
// claims of one endpoint, whose file is read once.
func (s *session) abandonedPorts(f func(path, network, id string)) error {
	paths, err := filepath.Glob(s.store.Path("ports", "*", "*"))
	if err != nil {
		return err
	}
	known := map[string]map[string]bool{} // by owner: the paths of the claims that it needs
	for _, path := range paths {
		owner, err := os.Readlink(path)
		if err != nil {
			continue
		}
		network, id, _ := strings.Cut(owner, "/")
		needed, has := known[owner]
		if !has {
			if e, err := s.store.Endpoint(network, id); err == nil {
				needed = s.store.portClaimsOf(e)
			}
			known[owner] = needed
		}
		if !needed[path] && s.abandonedPort(path, network, id) && isLink(path, owner) {
			f(path, network, id)
		}
	}
	return nil
}

// holds reports whether an address is still taken by the owner of an entry.
func (s *session) holds(n *Network, entry ipam.Entry) bool {
	owner, err := s.pool(n).Owner(entry.Addr)
	return err == nil && owner == entry.Owner
}

func isLink(path, target string) bool {
	got, err := os.Readlink(path)
	return err == nil && got == target
}

// claimAgain claims addresses of an endpoint whose claims somebody has removed.
func (s *session) claimAgain(n *Network, e *Endpoint) error {
	pool := s.pool(n)
	for _, a := range e.Addresses {
		if n.subnet(a) == nil {
			continue // leased
		}
		if err := s.explain(n.Name, pool.Claim(a, e.owner(), nil)); err != nil {
			return fmt.Errorf("connect %s again: %w", e.label(), err)
		}
	}
	return nil
}

// freeClaims frees addresses, names and ports that are claimed by nobody who is connected, or is
// being connected by another process at the moment. It is called with the lock on RUN/netops held.
func (s *session) freeClaims(n *Network) error {
	var errs []error
	pool := s.pool(n)
	entries, err := pool.Entries()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if _, reserved := entry.Owner.Reserved(); !reserved && s.abandoned(n.Name, string(entry.Owner)) {
			errs = append(errs, pool.Release(entry.Addr, entry.Owner))
		}
	}
	claims, _ := os.ReadDir(filepath.Dir(s.store.nameClaim(n.Name, "x")))
	for _, c := range claims {
		path := s.store.nameClaim(n.Name, c.Name())
		if owner, err := os.Readlink(path); err == nil && s.abandoned(n.Name, owner) {
			errs = append(errs, statedir.Remove(path))
		}
	}
	err = s.abandonedPorts(func(path, network, _ string) {
		if network == n.Name {
			errs = append(errs, statedir.Remove(path))
		}
	})
	return errors.Join(append(errs, err)...)
}
