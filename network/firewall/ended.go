package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
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
// It searches the connections of the addresses that the difference is about, or all if these are
// many or ranges. If the later State denies nothing that the first permits, it searches only marked
// connections.
func (t Table) EndConnections(before, after State) (n int, err error) {
	if err := before.validate(); err != nil {
		return 0, err
	}
	if err := after.validate(); err != nil {
		return 0, err
	}
	d := compareStates(before, after)
	if !d.differ || !d.denies && !t.hasEnded() {
		return 0, nil
	}
	e := ending{was: newJudge(before), is: newJudge(after), sameHost: d.flows != nil || !d.denies, local: hostAddrs{list: t.localAddrs}}
	err = t.with(func(k *kernel) error {
		filters, err := k.difference(d)
		if err == nil && d.denies && len(filters) > 0 {
			err = t.noteEnded()
		}
		if err == nil {
			n, err = k.endConnections(filters, &e)
		}
		if err == nil && e.left == 0 {
			err = t.forgetEnded()
		}
		return err
	})
	return n, err
}

// hasEnded reports whether there may be connections that EndConnections has marked.
func (t Table) hasEnded() bool {
	_, err := os.Lstat(t.Ended)
	return t.Ended == "" || !errors.Is(err, fs.ErrNotExist)
}

func (t Table) noteEnded() error {
	if t.Ended == "" {
		return nil
	}
	return os.WriteFile(t.Ended, nil, 0o600)
}

func (t Table) forgetEnded() error {
	if err := os.Remove(t.Ended); t.Ended != "" && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// difference is what two States permit differently to connections that exist.
type difference struct {
	differ, denies bool       // denies: the second may deny what the first permits
	flows          *selection // the addresses of flows that deny; nil: others may be denied as well
}

func compareStates(before, after State) difference {
	d := difference{flows: newSelection()}
	was, is := flowSet(before.Flows), flowSet(after.Flows)
	for f := range was {
		if !is[f] {
			d.add(f, f.Accept)
		}
	}
	for f := range is {
		if !was[f] {
			d.add(f, !f.Accept)
		}
	}
	same := slices.EqualFunc(before.Networks, after.Networks, func(a, b Network) bool {
		return a.Internal == b.Internal && a.HostAccess == b.HostAccess && slices.Equal(a.Prefixes, b.Prefixes) && slices.Equal(a.Gateways, b.Gateways)
	}) && maps.Equal(pairSet(before.Allow), pairSet(after.Allow))
	if !same {
		d = difference{differ: true, denies: true}
	}
	return d
}

// add adds a flow that only one of the States has.
func (d *difference) add(f Flow, denies bool) {
	d.differ = true
	if !denies {
		return
	}
	d.denies = true
	switch {
	case d.flows == nil:
	case f.FromFirst == f.FromLast:
		d.flows.addrs[f.FromFirst] = true
	case f.ToFirst == f.ToLast:
		d.flows.addrs[f.ToFirst] = true
	default:
		d.flows = nil
	}
}

// difference returns filters that find all connections that may end, and those that are marked.
// A search takes the kernel up to 15 ms even if it finds nothing: its table has many buckets.
func (k *kernel) difference(d difference) ([]filter, error) {
	tracked, err := k.countConnections()
	if err != nil || tracked == 0 {
		return nil, err
	}
	marked := filter{unix.NFPROTO_UNSPEC, markOf(endedMark)}
	if !d.denies {
		return []filter{marked}, nil
	}
	if d.flows == nil {
		return []filter{{family: unix.NFPROTO_UNSPEC}}, nil
	}
	filters := append(d.flows.filters(), marked)
	if (len(filters)-1)*searchConnections > tracked {
		filters = []filter{{family: unix.NFPROTO_UNSPEC}}
	}
	return filters, nil
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

// endConnections ends connections found by filters.
func (k *kernel) endConnections(filters []filter, e *ending) (n int, err error) {
	permitted, forgotten, marked := map[uint8][][]byte{}, map[uint8][][]byte{}, map[uint8][][]byte{}
	seen := map[string]bool{} // several filters may find a connection
	for _, one := range filters {
		err := k.dumpConnections(one, func(c connection) {
			to := e.judge(c.fromClient())
			if to == mark || to == leave && c.mark&endedMark != 0 {
				e.left++
			}
			if to == leave {
				return
			}
			f, key := c.family(), c.key()
			if seen[string(key)] {
				return
			}
			seen[string(key)] = true
			switch to {
			case mark:
				marked[f] = append(marked[f], append(key, markOf(endedMark)...))
			case forget:
				forgotten[f] = append(forgotten[f], key)
			case restore:
				permitted[f] = append(permitted[f], key)
			}
		})
		if err == nil {
			err = e.local.err
		}
		if err != nil {
			return 0, fmt.Errorf("list connections: %w", err)
		}
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

// fate is what happens to a connection.
type fate int

const (
	leave   fate = iota
	mark         // it is of TCP, and ends
	forget       // it ends
	restore      // it is marked, but permitted again
)

// ending decides about connections after a change.
type ending struct {
	was, is  *judge
	sameHost bool // both judges permit the same to connections that end at the host
	left     int  // how many connections are marked afterwards, or more
	local    hostAddrs
}

// hostAddrs are the addresses of the host. They are only listed when a decision depends on them: the host may
// have very many, or very many devices.
type hostAddrs struct {
	list   func() (map[netip.Addr]bool, error)
	listed map[netip.Addr]bool
	err    error // of list
}

func (h *hostAddrs) has(a netip.Addr) bool {
	if h.listed == nil && h.err == nil {
		h.listed, h.err = h.list()
	}
	return h.listed[a]
}

// judge returns what happens to a connection. It only asks for the host's addresses if its connections might
// end otherwise.
func (e *ending) judge(c connection) fate {
	if e.sameHost && e.decide(c, func(netip.Addr) bool { return false }) == leave {
		return leave
	}
	return e.decide(c, e.local.has)
}

func (e *ending) decide(c connection, local func(netip.Addr) bool) fate {
	switch {
	case c.mark&endedMark != 0:
		if e.is.permits(c, local) {
			return restore
		}
		return leave
	case e.is.permits(c, local) || !e.was.permits(c, local):
		return leave
	case c.original.protocol == packet.TCP:
		return mark
	}
	return forget
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
