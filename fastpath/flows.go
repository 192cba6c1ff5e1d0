package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Counter is what went the fast way.
type Counter struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // of frames
}

// Plus returns the sum of two counters.
func (c Counter) Plus(o Counter) Counter { return Counter{c.Packets + o.Packets, c.Bytes + o.Bytes} }

// Counters are what went the fast way, as the counters of the devices would have counted it, which don't.
type Counters struct {
	ToContainers map[int]Counter `json:"to_containers"` // sent by the host's ends of containers' links, by index
	Sealed       Counter         `json:"sealed"`        // sent by the VXLAN device
	Unsealed     Counter         `json:"unsealed"`      // received by it
}

// Keys of the map of counters beside indexes of devices, as in flow.h.
const (
	sealed   = 0
	unsealed = 0xffffffff
)

// count begins to count for a key.
func (p *Path) count(key uint32) error {
	zero := make([]flowCounter, ebpf.MustPossibleCPU())
	if err := p.objects.CountedMap.Update(key, zero, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("count packets: %w", err)
	}
	return nil
}

// Counters returns what went the fast way. Those of a device begin when the programs are attached to it.
func (p *Path) Counters() (Counters, error) {
	c := Counters{ToContainers: map[int]Counter{}}
	var key uint32
	var each []flowCounter
	all := p.objects.CountedMap.Iterate()
	for all.Next(&key, &each) {
		var sum Counter
		for _, one := range each {
			sum.Packets += one.Packets
			sum.Bytes += one.Bytes
		}
		switch key {
		case sealed:
			c.Sealed = sum
		case unsealed:
			c.Unsealed = sum
		default:
			c.ToContainers[int(key)] = sum
		}
	}
	if err := all.Err(); err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	return c, nil
}

// Flow is one direction of a connection whose packets go the fast way.
type Flow struct {
	Protocol            int // of IP
	Source, Destination netip.AddrPort
	Sealed              bool // the packets come in VXLAN
	In, Out             int  // indexes of devices
	Counter
}

// Flows returns the flows that are remembered, of which at least one packet went the fast way.
func (p *Path) Flows() (flows []Flow, err error) {
	var k flowKey
	var v flowFlow
	all := p.objects.Flows.Iterate()
	for all.Next(&k, &v) {
		if v.Packets == 0 {
			continue
		}
		flows = append(flows, Flow{
			Protocol: int(k.Protocol), Sealed: k.Sealed != 0, In: int(v.In), Out: int(v.Out),
			Source:      netip.AddrPortFrom(address(k, k.Source), bigEndian(k.SourcePort)),
			Destination: netip.AddrPortFrom(address(k, k.Destination), bigEndian(k.DestinationPort)),
			Counter:     Counter{v.Packets, v.Bytes},
		})
	}
	// A map whose elements are replaced meanwhile may never end.
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("read flows: %w", err)
	}
	return flows, nil
}

func address(k flowKey, words [4]uint32) netip.Addr {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	if k.V6 != 0 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:4]))
}

func bigEndian(port uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, port))
}
