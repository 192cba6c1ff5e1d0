package usernet

import (
	"errors"
	"net/netip"

	"cleat/packet"
)

type udpTable struct{ s *Stack }

func (t *udpTable) init(s *Stack)                             { t.s = s }
func (t *udpTable) input([]byte, *packet.VNetHdr, *packet.IP) {}
func (t *udpTable) flush()                                    {}               // after a batch from the device: send what was gathered
func (t *udpTable) pump()                                     {}               // each round: move what is ready toward the guest
func (t *udpTable) busy() bool                                { return false } // pump has more to do without a new event
func (t *udpTable) open() int                                 { return 0 }
func (t *udpTable) closeAll()                                 {}
func (t *udpTable) describe(all []FlowInfo) []FlowInfo        { return all }

// listen opens a forward; the listener's close ends it.
func (t *udpTable) listen(f Forward) (at netip.AddrPort, close func(), err error) {
	return netip.AddrPort{}, nil, errors.ErrUnsupported
}
