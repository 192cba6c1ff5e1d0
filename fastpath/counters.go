package fastpath

import (
	"errors"
	"fmt"

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
