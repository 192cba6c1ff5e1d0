package overlay

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"cleat/overlay/registry"
)

// packed has the endpoints of a host on a network, by id. A cluster may have 100,000 of them, which every host mirrors:
// as bytes they take about a fifth of what they take as Go values, and the garbage collector does not look at them.
//
// Each record is its length, then the fields of an Endpoint without network and host. Numbers are varints. A string is
// its length and its bytes, a list the number of its elements and these.
type packed []byte

// pack returns the record of an endpoint.
func pack(e registry.Endpoint) []byte {
	b := appendString(nil, e.ID)
	b = binary.AppendUvarint(b, uint64(e.Version))
	b = appendString(b, e.Container)
	b = binary.AppendUvarint(b, uint64(len(e.Names)))
	for _, n := range e.Names {
		b = appendString(b, n)
	}
	b = binary.AppendUvarint(b, uint64(len(e.Addresses)))
	for _, a := range e.Addresses {
		b = appendAddr(b, a)
	}
	b = binary.AppendUvarint(b, uint64(len(e.Labels)))
	for _, k := range slices.Sorted(maps.Keys(e.Labels)) {
		b = appendString(appendString(b, k), e.Labels[k])
	}
	b = binary.AppendUvarint(b, uint64(len(e.Ports)))
	for _, p := range e.Ports {
		b = appendPort(b, p)
	}
	return b
}

func appendPort(b []byte, p registry.Port) []byte {
	b = appendString(b, p.Protocol)
	for _, n := range []uint16{p.Port, p.Count, p.HostPort} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = appendAddr(b, p.HostAddr)
	var flags byte
	if p.All {
		flags |= portAll
	}
	if p.Bypass {
		flags |= portBypass
	}
	return append(b, flags)
}

// Flags of a port.
const (
	portAll = 1 << iota
	portBypass
)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	text, _ := a.MarshalBinary() // it never fails
	return appendString(b, string(text))
}

// unpack returns the endpoint of a record that pack made.
func unpack(of endpointsOf, record []byte) registry.Endpoint {
	r := unpacker(record)
	e := registry.Endpoint{Network: of.network, Host: of.host, ID: r.string(), Version: int(r.number()), Container: r.string()}
	e.Names = list(&r, (*unpacker).string)
	e.Addresses = list(&r, (*unpacker).addr)
	if n := r.number(); n > 0 {
		e.Labels = make(map[string]string, n)
		for range n {
			k := r.string()
			e.Labels[k] = r.string()
		}
	}
	e.Ports = list(&r, func(r *unpacker) registry.Port {
		p := registry.Port{Protocol: r.string(), Port: uint16(r.number()), Count: uint16(r.number()), HostPort: uint16(r.number())}
		p.HostAddr = r.addr()
		flags := r.number()
		p.All, p.Bypass = flags&portAll != 0, flags&portBypass != 0
		return p
	})
	return e
}

// unpacker reads what pack wrote.
type unpacker []byte

func (r *unpacker) number() uint64 {
	n, size := binary.Uvarint(*r)
	*r = (*r)[size:]
	return n
}

func (r *unpacker) bytes() []byte {
	n := r.number()
	b := (*r)[:n]
	*r = (*r)[n:]
	return b
}

func (r *unpacker) string() string { return string(r.bytes()) }

func (r *unpacker) addr() (a netip.Addr) {
	_ = a.UnmarshalBinary(r.bytes()) // MarshalBinary wrote it
	return a
}

// list returns nil for an empty list.
func list[T any](r *unpacker, one func(*unpacker) T) []T {
	n := r.number()
	if n == 0 {
		return nil
	}
	all := make([]T, n)
	for i := range all {
		all[i] = one(r)
	}
	return all
}

// find returns where the record of an id begins and ends, or where it would be; record is nil then.
func (p packed) find(id string) (from, to int, record []byte) {
	wanted := []byte(id)
	for r := unpacker(p); len(r) > 0; {
		at := len(p) - len(r)
		record := r.bytes()
		head := unpacker(record)
		switch bytes.Compare(head.bytes(), wanted) {
		case 0:
			return at, len(p) - len(r), record
		case 1:
			return at, at, nil
		}
	}
	return len(p), len(p), nil
}

// set returns the endpoints with one more, or another one with the same id. It may change p.
func (p packed) set(e registry.Endpoint) packed {
	record := pack(e)
	from, to, _ := p.find(e.ID)
	return slices.Replace(p, from, to, append(binary.AppendUvarint(nil, uint64(len(record))), record...)...)
}

// push returns the endpoints with one more, whose id is greater than those of the others. It may change p.
func (p packed) push(e registry.Endpoint) packed {
	record := pack(e)
	return append(binary.AppendUvarint(p, uint64(len(record))), record...)
}

// endsWith reports whether no endpoint has a greater id.
func (p packed) endsWith(id string) bool {
	_, to, record := p.find(id)
	return record != nil && to == len(p)
}

// remove returns the endpoints without one. It may change p.
func (p packed) remove(id string) packed {
	from, to, _ := p.find(id)
	return slices.Delete(p, from, to)
}

// get returns an endpoint.
func (p packed) get(of endpointsOf, id string) (e registry.Endpoint, ok bool) {
	_, _, record := p.find(id)
	if record == nil {
		return e, false
	}
	return unpack(of, record), true
}

// all returns all endpoints, by id.
func (p packed) all(of endpointsOf) (all []registry.Endpoint) {
	for r := unpacker(p); len(r) > 0; {
		all = append(all, unpack(of, r.bytes()))
	}
	return all
}

// clip returns p without the room that it has for more, if that is much.
func (p packed) clip() packed {
	if cap(p)-len(p) > len(p)/8 {
		return append(make(packed, 0, len(p)), p...)
	}
	return p
}
