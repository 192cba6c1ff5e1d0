package names

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"
)

// ttl is the TTL of our records, in seconds; doc.go says why.
const ttl = 1

// zone holds the names of a network. It is never changed.
type zone struct {
	cfg       Network         // without endpoints
	domain    string          // in wire format
	endpoints table[Endpoint] // by ID
	names     table[*entry]   // by name in wire format, in lower case
	clients   table[string]   // IDs of endpoints by their addresses (clientKey)
}

// entry is what a zone has for a name. It is never changed, but for the turns of its sets.
type entry struct {
	parts []part
	apex  bool // exists without records, because names below it do
	sets  [len(setTypes)]*rrset
}

// setTypes are the types of an entry's sets.
var setTypes = [...]dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypePTR, dnsmessage.TypeSRV}

// part is a record that an endpoint contributes to an entry.
type part struct {
	id   string // of the endpoint
	typ  dnsmessage.Type
	data string // RDATA in wire format
}

// rrset is a set of records of one name and type, in wire format. Each begins with a pointer
// to the question's name.
type rrset struct {
	records [][]byte
	inOrder bool          // every answer begins with the first record
	turn    atomic.Uint32 // counts answers; the next one begins with another record
}

// newZone returns a zone for a checked network, without endpoints.
func newZone(cfg Network) *zone {
	z := &zone{cfg: cfg, domain: mustWire(cfg.Domain)}
	z.names.set(z.domain, &entry{apex: true})
	z.names.set(mustWire(cfg.Name), &entry{apex: true})
	return z
}

// with returns a copy of the zone with a change.
func (z *zone) with(c Change) (*zone, error) {
	next := &zone{cfg: z.cfg, domain: z.domain, endpoints: z.endpoints.copy(), names: z.names.copy(), clients: z.clients.copy()}
	edits := map[string]*entry{}
	edit := func(name string) *entry {
		e := edits[name]
		if e == nil {
			e = &entry{}
			if old, ok := next.names.get([]byte(name)); ok {
				*e = entry{parts: slices.Clone(old.parts), apex: old.apex, sets: old.sets}
			}
			edits[name] = e
		}
		return e
	}
	remove := func(id string) {
		old, _ := next.endpoints.get([]byte(id))
		for name := range next.parts(old) {
			e := edit(name)
			e.parts = slices.DeleteFunc(e.parts, func(p part) bool { return p.id == id })
		}
		for _, a := range old.Addrs {
			next.clients.delete(clientKey(a))
		}
		next.endpoints.delete(id)
	}
	for _, id := range c.Delete {
		remove(id)
	}
	seen := map[string]bool{}
	for _, e := range c.Set {
		e, err := e.checked(z.longest())
		if err != nil {
			return nil, err
		}
		if seen[e.ID] {
			return nil, fmt.Errorf("endpoint %q: it occurs twice", e.ID)
		}
		seen[e.ID] = true
		remove(e.ID)
		next.endpoints.set(e.ID, e)
		for _, a := range e.Addrs {
			next.clients.set(clientKey(a), e.ID)
		}
		for name, parts := range next.parts(e) {
			edit(name).parts = append(edit(name).parts, parts...)
		}
	}
	for name, e := range edits {
		if len(e.parts) == 0 && !e.apex {
			next.names.delete(name)
			continue
		}
		e.encode()
		next.names.set(name, e)
	}
	return next, nil
}

// clientKey returns the key of an address in clients.
func clientKey(a netip.Addr) string {
	key := a.As16()
	return string(key[:])
}

// longest returns the longer one of the network's name and domain.
func (z *zone) longest() string {
	if len(z.cfg.Name) > len(z.cfg.Domain) {
		return z.cfg.Name
	}
	return z.cfg.Domain
}

// parts returns the records of an endpoint by name in wire format. The zero Endpoint has none.
func (z *zone) parts(e Endpoint) map[string][]part {
	all := map[string][]part{}
	if e.Name == "" {
		return all
	}
	target := mustWire(e.Name + "." + z.cfg.Domain)
	for _, name := range append([]string{e.Name}, e.Aliases...) {
		forms := []string{name, name + "." + z.cfg.Domain}
		if z.cfg.Name != z.cfg.Domain {
			forms = append(forms, name+"."+z.cfg.Name)
		}
		for _, form := range forms {
			z.addParts(all, form, target, &e)
		}
	}
	for _, a := range e.Addrs {
		name := mustWire(reverseName(a))
		for _, target := range z.reverse(e, target) {
			all[name] = append(all[name], part{e.ID, dnsmessage.TypePTR, target})
		}
	}
	return all
}

// reverse returns the names of an endpoint's addresses in wire format, the best known first. target is its
// name with the domain.
func (z *zone) reverse(e Endpoint, target string) []string {
	if !z.cfg.AllReverse {
		return []string{target}
	}
	all := []string{mustWire(e.Name)}
	for _, alias := range e.Aliases {
		all = append(all, mustWire(alias))
	}
	return all
}

// addParts adds the addresses and ports of an endpoint under one of its names.
func (z *zone) addParts(all map[string][]part, name, target string, e *Endpoint) {
	key := mustWire(name)
	all[key] = append(all[key], part{id: e.ID}) // the name exists even without an address
	for _, a := range e.Addrs {
		typ := dnsmessage.TypeAAAA
		if a.Is4() {
			typ = dnsmessage.TypeA
		}
		all[key] = append(all[key], part{e.ID, typ, string(a.AsSlice())})
	}
	for _, p := range e.Ports {
		data := string(binary.BigEndian.AppendUint16(make([]byte, 4, 6), p.Port)) + target // priority 0, weight 0
		for _, labels := range p.labels() {
			key, err := wireName(labels + "." + name)
			if err == nil { // else too long for a query
				all[key] = append(all[key], part{e.ID, dnsmessage.TypeSRV, data})
			}
		}
	}
}

// encode makes the sets from the parts. Their turns go on.
func (e *entry) encode() {
	for i, old := range e.sets {
		e.sets[i] = nil
		if records := encode(e.parts, setTypes[i]); len(records) > 0 {
			e.sets[i] = &rrset{records: records, inOrder: setTypes[i] == dnsmessage.TypePTR}
			e.sets[i].takeTurn(old)
		}
	}
}

// takeTurn continues the turns of another set, which may be nil.
func (s *rrset) takeTurn(old *rrset) {
	if s != nil && old != nil {
		s.turn.Store(old.turn.Load())
	}
}

// encode returns the records of a type in wire format, without duplicates.
func encode(parts []part, typ dnsmessage.Type) [][]byte {
	var all [][]byte
	seen := map[string]bool{}
	for _, p := range parts {
		if p.typ == typ && !seen[p.data] {
			seen[p.data] = true
			all = append(all, record(typ, p.data))
		}
	}
	return all
}

// record returns a record in wire format (RFC 1035 section 4.1.3) with a pointer to the
// question's name as its owner.
func record(typ dnsmessage.Type, data string) []byte {
	b := binary.BigEndian.AppendUint16(nil, pointer|questionAt)
	b = binary.BigEndian.AppendUint16(b, uint16(typ))
	b = binary.BigEndian.AppendUint16(b, uint16(dnsmessage.ClassINET))
	b = binary.BigEndian.AppendUint32(b, ttl)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// takeTurns continues the turns of another zone of the network.
func (z *zone) takeTurns(last *zone) {
	for name, e := range z.names.all() {
		if old, ok := last.names.get([]byte(name)); ok {
			for i := range e.sets {
				e.sets[i].takeTurn(old.sets[i])
			}
		}
	}
}

// set returns the records of a type, or nil.
func (e *entry) set(typ dnsmessage.Type) *rrset {
	for i, t := range setTypes {
		if t == typ {
			return e.sets[i]
		}
	}
	return nil
}

// newLocalhost returns the addresses of localhost (RFC 6761 section 6.3).
func newLocalhost() *entry {
	e := &entry{parts: []part{
		{typ: dnsmessage.TypeA, data: "\x7f\x00\x00\x01"},
		{typ: dnsmessage.TypeAAAA, data: string(netip.IPv6Loopback().AsSlice())},
	}}
	e.encode()
	return e
}
