package firewall

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// endedMark is the bit in the mark of a tracked connection that makes the table drop its packets.
// It is not that of packets: programs copy the marks of packets to connections.
const endedMark = 1 << 25

// EndConnections ends the connections that one State permits and a later one, which the table
// has, does not. Of the States' networks only the prefixes, gateways and permissions count.
// Connections of the host itself go on. It returns the number of connections.
//
// The kernel forgets such a connection, so its next packet is judged as new. That would not end
// a TCP connection whose other end may open connections in the opposite direction: the kernel
// takes any segment for the start of a connection (nf_conntrack_tcp_loose), also one of the
// server. So TCP connections are marked instead, and the table drops both directions. Marked
// connections that the later State permits again are forgotten.
//
// It lists all connections if the later State denies anything that the first does not, and
// otherwise, if they differ, only those that are marked.
func (t Table) EndConnections(before, after State) (n int, err error) {
	if err := before.validate(); err != nil {
		return 0, err
	}
	if err := after.validate(); err != nil {
		return 0, err
	}
	differ, denies := compareStates(before, after)
	if !differ {
		return 0, nil
	}
	local, err := t.localAddrs()
	if err != nil {
		return 0, fmt.Errorf("end connections in %s: %w", t.NS, err)
	}
	was, is := newJudge(before, local), newJudge(after, local)
	err = t.with(func(k *kernel) error {
		n, err = k.endConnections(denies, was, is)
		return err
	})
	return n, err
}

// compareStates reports whether two States differ in what they permit to connections that exist,
// and whether the second may deny some that the first permits.
func compareStates(before, after State) (differ, denies bool) {
	was, is := flowSet(before.Flows), flowSet(after.Flows)
	for f := range was {
		if !is[f] {
			differ, denies = true, denies || f.Accept
		}
	}
	for f := range is {
		if !was[f] {
			differ, denies = true, denies || !f.Accept
		}
	}
	same := slices.EqualFunc(before.Networks, after.Networks, func(a, b Network) bool {
		return a.Internal == b.Internal && a.HostAccess == b.HostAccess && slices.Equal(a.Prefixes, b.Prefixes) && slices.Equal(a.Gateways, b.Gateways)
	}) && maps.Equal(pairSet(before.Allow), pairSet(after.Allow))
	return differ || !same, denies || !same
}

func flowSet(all []Flow) map[Flow]bool {
	set := map[Flow]bool{}
	for _, f := range all {
		set[f] = true
	}
	return set
}

func pairSet(all []Pair) map[Pair]bool {
	set := map[Pair]bool{}
	for _, p := range all {
		set[p] = true
	}
	return set
}

// endConnections ends the connections that is does not permit and was does.
func (k *kernel) endConnections(denies bool, was, is *judge) (n int, err error) {
	all := filter{family: unix.NFPROTO_UNSPEC}
	if !denies {
		all.attrs = markOf(endedMark)
	}
	permitted, forgotten, marked := map[uint8][][]byte{}, map[uint8][][]byte{}, map[uint8][][]byte{}
	err = k.dumpConnections(all, func(c connection) {
		f := c.family()
		c = c.fromClient()
		switch {
		case c.mark&endedMark != 0:
			if is.permits(c) {
				permitted[f] = append(permitted[f], c.key)
			}
		case !was.permits(c) || is.permits(c):
		case c.original.protocol == packet.TCP:
			marked[f] = append(marked[f], append(slices.Clip(c.key), markOf(endedMark)...))
		default:
			forgotten[f] = append(forgotten[f], c.key)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("list connections: %w", err)
	}
	for _, f := range families {
		for _, step := range []struct {
			kind   uint16
			bodies [][]byte
			ends   bool
		}{{ctNew, marked[f.id], true}, {ctDelete, forgotten[f.id], true}, {ctDelete, permitted[f.id], false}} {
			changed, err := k.changeConnections(f.id, step.kind, step.bodies)
			if step.ends {
				n += changed
			}
			if err != nil {
				return n, fmt.Errorf("end connections: %w", err)
			}
		}
	}
	return n, nil
}

// fromClient returns a connection with its directions swapped if the kernel has probably taken the
// server for the client: it has not seen the start, and the port of the apparent client is the
// lower one.
func (c connection) fromClient() connection {
	if c.pickedUp && c.status&(ipsSrcNAT|ipsDstNAT) == 0 && c.original.sport < c.original.dport {
		c.original, c.reply = c.reply, c.original
	}
	return c
}

// markOf returns the attributes for a bit of a mark: what a filter compares, or what changes.
func markOf(bit uint32) []byte {
	b := batch{}
	b.bytes(ctaMark, binary.BigEndian.AppendUint32(nil, bit))
	b.bytes(ctaMarkMask, binary.BigEndian.AppendUint32(nil, bit))
	return b.buf
}

// expected is IPS_EXPECTED (nf_conntrack_common.h): the connection belongs to another one.
const expected = 1 << 0

// hasPorts reports whether a protocol has ports where TCP has them.
func hasPorts(p packet.Protocol) bool {
	switch p {
	case packet.TCP, packet.UDP, SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE:
		return true
	}
	return false
}
