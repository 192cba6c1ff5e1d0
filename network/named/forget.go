package named

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"cleat/network/firewall"
)

// forget ends what the kernel remembers of connections of ports and endpoints that have come or
// gone: otherwise an address or a port that changes hands gets packets of its former owner.
func (s *session) forget(c firewall.Change) error {
	_, err := s.Rules.ForgetConnections(c, 0)
	return err
}

// endConnected ends an operation that has put what r tells of into the kernel: connections of former
// owners of its addresses and ports are forgotten, and the journal goes. If the process has a background,
// the search for them goes there, and is joined with others: it takes longer than all the rest. The next
// operation on the endpoint need not wait for it.
func (s *session) endConnected(o *operation, n *Network, r record) error {
	if !r.Forget && len(r.Endpoint.Wanted.Ports)+len(r.Withdrawn) == 0 {
		return o.end()
	}
	r.Network = n.Name
	if err := o.record(r); err != nil {
		return errors.Join(err, o.giveUp())
	}
	end := func(s *session, within time.Duration) error {
		if _, err := s.Rules.ForgetConnections(r.forgotten(n), within); err != nil {
			return errors.Join(err, o.giveUp())
		}
		return o.end()
	}
	if s.Attach.Background == nil {
		return end(s, 0)
	}
	within := forgetWithin
	if r.Forget { // nothing tells connections of the new owner apart, which may begin any moment
		within = 0
	}
	searches := fmt.Sprintf("%s%s~%d", searchPrefix, operationName(n.Name, endpointID(r.Endpoint.Container)), time.Now().UnixNano())
	if err := o.journal.Rename(s.store.RunPath("netops", searches)); err != nil {
		return errors.Join(err, o.giveUp())
	}
	_, err := s.later(o, func(s *session) error { return end(s, within) })
	return err
}

// searchPrefix begins the names of operations that only wait for a search of connections.
const searchPrefix = "~"

// forgetWithin is for how long the search may be put off. Until then a client that was refused
// when a port was not published yet may stay refused.
const forgetWithin = 100 * time.Millisecond

// unowned returns those addresses that nobody has on a network.
func (s *session) unowned(n *Network, addrs []netip.Addr) []netip.Addr {
	pool := s.pool(n)
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		owner, err := pool.Owner(a)
		return err != nil || owner != ""
	})
}

// addForgotten remembers addresses that have no owner, and of whose former owners no connections are tracked.
func (f *Files) addForgotten(addrs []netip.Addr) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.forgotten == nil || len(f.forgotten) >= maxFiles {
		f.forgotten = map[netip.Addr]bool{}
	}
	for _, a := range addrs {
		f.forgotten[a] = true
	}
}

// takeForgotten reports whether addForgotten has remembered all of these addresses, and forgets that, because
// they have, or had, another owner.
func (f *Files) takeForgotten(addrs []netip.Addr) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all := !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !f.forgotten[a] })
	for _, a := range addrs {
		delete(f.forgotten, a)
	}
	return all
}
