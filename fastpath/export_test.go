package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// WithoutTCX has wires have classifiers, as before Linux 6.6.
func (p *Path) WithoutTCX() { p.tcx = false }

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
