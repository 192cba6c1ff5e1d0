package usernet

import "cleat/packet"

type icmpTable struct{ s *Stack }

func (t *icmpTable) init(s *Stack)                      { t.s = s }
func (t *icmpTable) input(frame []byte, ip *packet.IP)  {}
func (t *icmpTable) pump()                              {}
func (t *icmpTable) open() int                          { return 0 }
func (t *icmpTable) closeAll()                          {}
func (t *icmpTable) describe(all []FlowInfo) []FlowInfo { return all }

// unreachable answers a packet of the guest's (with its virtio header) by an
// ICMP error from the gateway.
func (t *icmpTable) unreachable(frame []byte, why packet.ErrorKind) {}
