package names

import (
	"net/netip"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"
)

// network is a network that is served. Sockets refer to it for as long as it exists.
type network struct {
	name    string
	zone    atomic.Pointer[zone]
	forward atomic.Pointer[forwarder] // nil: the network does not forward
}

// outcome is what becomes of a message. The counters of a socket are indexed by it.
type outcome int

const (
	answered  outcome = iota // with records
	empty                    // the name is ours, but has no such record
	unknown                  // NXDOMAIN
	forwarded                // to the resolvers
	refused                  // REFUSED, BADVERS
	invalid                  // FORMERR, NOTIMP
	ignored                  // not a query: no answer
	dropped                  // over a limit, or the answer could not be sent
	outcomes
)

// process parses and resolves a message that has arrived at a socket.
func (q *query) process(k *socket, msg []byte, client netip.Addr) (reply, outcome) {
	switch q.parse(msg) {
	case unanswerable:
		return reply{}, ignored
	case malformed:
		return reply{code: dnsmessage.RCodeFormatError}, invalid
	case notImplemented:
		return reply{code: dnsmessage.RCodeNotImplemented}, invalid
	}
	v := k.view.Load()
	if isStranger(k.server, v.networks, client) {
		return reply{code: dnsmessage.RCodeRefused}, refused
	}
	return resolve(k.server, v, q, client)
}

// isStranger reports whether a client belongs to a network, but to none that the socket sees.
func isStranger(s *server, networks []*network, client netip.Addr) bool {
	for _, n := range networks {
		for _, subnet := range n.zone.Load().cfg.Subnets {
			if subnet.Contains(client) {
				return false
			}
		}
	}
	return s.hasSubnet(netip.PrefixFrom(client, client.BitLen()))
}

// resolve answers a valid query through a socket with a view, or returns forwarded.
func resolve(s *server, v *view, q *query, client netip.Addr) (reply, outcome) {
	if q.version > 0 {
		return reply{upper: badVersion}, refused
	}
	if q.class != dnsmessage.ClassINET || isMeta(q.typ) {
		return reply{code: dnsmessage.RCodeRefused}, refused
	}
	for _, n := range v.networks {
		if e, ok := n.zone.Load().names.get(q.name()); ok {
			return e.reply(q.typ)
		}
	}
	if e := s.elsewhere(v, q.name(), client); e != nil {
		return e.reply(q.typ)
	}
	return resolveOther(s, v, q)
}

// isMeta reports whether a type is that of a zone transfer, or stands for several types (RFC
// 6895 section 3.1).
func isMeta(t dnsmessage.Type) bool { return 251 <= t && t <= 255 }

func (e *entry) reply(typ dnsmessage.Type) (reply, outcome) {
	set := e.set(typ)
	if set == nil {
		return reply{ours: true}, empty
	}
	return reply{ours: true, set: set}, answered
}

// nothing and nobody are the answers without records: the name exists, or it does not.
var (
	nothing = reply{ours: true}
	nobody  = reply{ours: true, code: dnsmessage.RCodeNameError}
)

// resolveOther answers a query for a name that no zone has.
func resolveOther(s *server, v *view, q *query) (reply, outcome) {
	name, networks := q.name(), v.networks
	if within(name, "\x09localhost\x00") {
		return s.localhost.reply(q.typ)
	}
	if serviceOf(networks, name) {
		return nothing, empty
	}
	forwards, singles := false, false
	for _, n := range networks {
		z := n.zone.Load()
		if within(name, z.domain) {
			return nobody, unknown
		}
		forwards = forwards || n.forward.Load() != nil
		singles = singles || z.cfg.SingleLabels
	}
	if prefix, ok := reversePrefix(name); ok && s.hasSubnet(prefix) {
		if !prefix.IsSingleIP() {
			return nothing, empty // names below it exist
		}
		return nobody, unknown
	}
	switch {
	case v.onlyOurs:
		return reply{code: dnsmessage.RCodeRefused}, refused
	case !forwards && q.labels == 0: // the root exists
		return nothing, empty
	case !forwards:
		return reply{code: dnsmessage.RCodeNameError}, unknown
	case q.labels == 1 && !singles && !isInfrastructure(q.typ):
		return nobody, unknown
	}
	return reply{}, forwarded
}

// serviceOf reports whether a name consists of labels with underscores (RFC 8552) and a name
// that a zone has. It may exist, as part of the name of a service.
func serviceOf(networks []*network, name []byte) bool {
	at := 0
	for name[at] != 0 && name[at+1] == '_' {
		at += 1 + int(name[at])
	}
	if at == 0 {
		return false
	}
	for _, n := range networks {
		if _, ok := n.zone.Load().names.get(name[at:]); ok {
			return true
		}
	}
	return false
}

// isInfrastructure reports whether a type is about the tree of zones. Validating resolvers
// query these types of public top-level domains.
func isInfrastructure(t dnsmessage.Type) bool {
	const ds, dnskey = 43, 48 // RFC 4034
	return t == dnsmessage.TypeNS || t == dnsmessage.TypeSOA || t == ds || t == dnskey
}

// forwarderOf returns the forwarder of the first network that has one, or nil.
func forwarderOf(networks []*network) (*network, *forwarder) {
	for _, n := range networks {
		if f := n.forward.Load(); f != nil {
			return n, f
		}
	}
	return nil, nil
}
