package firewall

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"cleat/internal/nlsock"
	"cleat/link"
	"cleat/packet"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ForgetConnections makes the kernel forget connections that it tracks, so that the next packet of each
// meets the rules again. It is called after Apply with the same change: clients that were refused before a
// port came hold on to the host itself, and those of a port that has gone to its container. So the
// connections are:
//
//   - of a port that has come, those that do not go to its container,
//   - of a port that has gone, those that go to its container,
//   - of an endpoint that has come or gone, all from and to its addresses.
//
// It returns their number.
//
// The kernel searches its whole table of connections, which takes up to 15 ms on a machine with
// much memory, however few there are. An Owner joins calls, which may be put off for a while;
// here they are not.
func (t Table) ForgetConnections(c Change, _ time.Duration) (n int, err error) {
	if err := c.validate(); err != nil {
		return 0, err
	}
	want := newSelection()
	want.add(c)
	return t.forget(want)
}

// forget makes the kernel forget the selected connections.
func (t Table) forget(want *selection) (n int, err error) {
	if want.isEmpty() {
		return 0, nil
	}
	err = t.with(func(k *kernel) error {
		tracked, err := k.countConnections()
		if err != nil || tracked == 0 {
			return err
		}
		want.local.list = t.localAddrs
		n, err = k.forget(want, tracked)
		return err
	})
	if err != nil {
		return n, fmt.Errorf("forget connections: %w", err)
	}
	return n, nil
}

// searchConnections is about how many connections the kernel can list in the time in which it
// searches its table, which has a size of its own: 15 ms for 250,000 buckets, and 0.8 µs for each
// connection.
const searchConnections = 16 << 10

// selection determines connections.
type selection struct {
	ports map[portKind][]changedPort // by what a client sees of them
	addrs map[netip.Addr]bool        // of endpoints
	local hostAddrs
}

// changedPort is a port that has come or gone.
type changedPort struct {
	Port
	gone bool
}

type portKind struct {
	protocol packet.Protocol
	port     uint16
}

func newSelection() *selection {
	return &selection{ports: map[portKind][]changedPort{}, addrs: map[netip.Addr]bool{}}
}

// add adds the connections of the ports and endpoints of a change.
func (w *selection) add(c Change) {
	w.addState(c.Add, false)
	w.addState(c.Remove, true)
}

func (w *selection) addState(s State, gone bool) {
	for _, p := range s.Ports {
		for i := range p.count() {
			kind := portKind{p.Protocol, p.HostPort + uint16(i)}
			w.ports[kind] = append(w.ports[kind], changedPort{p, gone})
		}
	}
	for _, n := range s.Networks {
		for _, e := range n.Endpoints {
			for _, a := range e.Addrs {
				w.addrs[a] = true
			}
		}
	}
}

func (w *selection) isEmpty() bool { return len(w.ports)+len(w.addrs) == 0 }

// has reports whether a connection is selected.
func (w *selection) has(c connection) bool {
	if w.addrs[c.original.src] || w.addrs[c.reply.src] {
		return true
	}
	for _, p := range w.ports[portKind{c.original.protocol, c.original.dport}] {
		toContainer := c.reply.src == p.To.Addr() && c.reply.sport == p.To.Port()+(c.original.dport-p.HostPort)
		if p.gone {
			if toContainer {
				return true
			}
			continue
		}
		if toContainer || c.original.dst.Is4() != p.To.Addr().Is4() {
			continue
		}
		if p.HostAddr == c.original.dst || p.anywhere() && (c.original.dst.IsLoopback() || w.local.has(c.original.dst)) {
			return true
		}
	}
	return false
}

// connection is a connection that the kernel tracks.
type connection struct {
	original, reply tuple
	status, mark    uint32
	pickedUp        bool   // TCP: the kernel has not seen its start
	body            []byte // the kernel's message, valid until the next one is read
}

// family returns the connection's address family.
func (c connection) family() uint8 {
	if c.original.src.Is4() {
		return ipv4.id
	}
	return ipv6.id
}

// tuple is one direction of a connection.
type tuple struct {
	src, dst     netip.Addr
	protocol     packet.Protocol
	sport, dport uint16
}

func (t Table) localAddrs() (map[netip.Addr]bool, error) {
	h, err := link.Handle(t.NS)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := link.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	local := map[netip.Addr]bool{}
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			local[ip.Unmap()] = true
		}
	}
	return local, nil
}

// forget deletes connections, of which there are about as many as tracked. The kernel finds few
// among many by filters, each of which is a search of its own. Otherwise all are listed.
func (k *kernel) forget(want *selection, tracked int) (n int, err error) {
	filters := want.filters()
	if (len(filters)-1)*searchConnections > tracked {
		filters = []filter{{family: unix.NFPROTO_UNSPEC}}
	}
	doomed := map[uint8][][]byte{}
	for _, f := range filters {
		err := k.dumpConnections(f, func(c connection) {
			if want.has(c) {
				doomed[c.family()] = append(doomed[c.family()], c.key())
			}
		})
		if err == nil {
			err = want.local.err
		}
		if err != nil {
			return n, fmt.Errorf("list connections: %w", err)
		}
	}
	for family, keys := range doomed {
		deleted, err := k.changeConnections(family, ctDelete, keys)
		n += deleted
		if err != nil {
			return n, fmt.Errorf("delete connections: %w", err)
		}
	}
	return n, nil
}

// countConnections returns how many connections the namespace tracks.
func (k *kernel) countConnections() (n int, err error) {
	_, body, err := k.reads.Ask(nlsock.Request{Kind: ctGetStats, Body: header(unix.NFPROTO_UNSPEC)})
	if err != nil {
		return 0, fmt.Errorf("count connections: %w", err)
	}
	for kind, data := range attributes(body) {
		if kind == ctaStatsGlobalEntries {
			n = int(number(data))
		}
	}
	return n, nil
}

// Parts of requests and answers (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet      = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	ctDelete   = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE
	ctGetStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5 // IPCTNL_MSG_CT_GET_STATS

	ctaStatsGlobalEntries = 1

	ctNew = unix.NFNL_SUBSYS_CTNETLINK << 8 // IPCTNL_MSG_CT_NEW, which also changes connections

	ctaTupleOrig, ctaTupleReply, ctaStatus, ctaMark, ctaID = 1, 2, 3, 8, 12
	ctaProtoinfo, ctaProtoinfoTCP, ctaFlagsOriginal        = 4, 1, 4
	ctaZone, ctaMarkMask, ctaFilter                        = 18, 21, 25
	ctaTupleIP, ctaTupleProto                              = 1, 2
	ctaIPv4Src, ctaIPv4Dst, ctaIPv6Src, ctaIPv6Dst         = 1, 2, 3, 4
	ctaProtoNum, ctaProtoSrcPort, ctaProtoDstPort          = 1, 2, 3
	ctaFilterOrigFlags, ctaFilterReplyFlags                = 1, 2

	// Parts of a tuple that a filter compares (net/netfilter/nf_internals.h).
	filterIPSrc, filterProtoNum, filterDstPort = 1 << 0, 1 << 3, 1 << 5
)

// filter selects connections that the kernel lists.
type filter struct {
	family uint8  // unix.NFPROTO_UNSPEC: both
	attrs  []byte // parts of tuples; none: all connections
}

// filters returns filters for the kernel, each of which finds a part of the connections, and
// together all. Linux before 5.8 ignores their attributes and finds everything.
func (w *selection) filters() (all []filter) {
	for kind, ports := range w.ports {
		for _, f := range families {
			if !slices.ContainsFunc(ports, func(p changedPort) bool { return f.has(p.To.Addr()) }) {
				continue
			}
			b := batch{}
			proto := func() {
				b.bytes(ctaProtoNum, []byte{byte(kind.protocol)})
				b.bytes(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, kind.port))
			}
			b.tupleFilter(ctaTupleOrig, ctaTupleProto, proto, filterProtoNum|filterDstPort)
			all = append(all, filter{f.id, b.buf})
		}
	}
	for a := range w.addrs {
		family, source := ipv4.id, uint16(ctaIPv4Src)
		if a.Is6() {
			family, source = ipv6.id, ctaIPv6Src
		}
		for _, direction := range []uint16{ctaTupleOrig, ctaTupleReply} {
			b := batch{}
			b.tupleFilter(direction, ctaTupleIP, func() { b.bytes(source, a.AsSlice()) }, filterIPSrc)
			all = append(all, filter{family, b.buf})
		}
	}
	return all
}

// tupleFilter appends a filter that compares a part of the tuple of a direction.
func (b *batch) tupleFilter(direction, part uint16, content func(), flags uint32) {
	t := b.nest(direction)
	p := b.nest(part)
	content()
	b.close(p)
	b.close(t)
	f := b.nest(ctaFilter)
	for kind, value := range map[uint16]uint32{ctaFilterOrigFlags: 0, ctaFilterReplyFlags: 0, direction: flags} {
		b.bytes(kind, native.AppendUint32(nil, value))
	}
	b.close(f)
}

// dumpConnections calls each for the connections that a filter finds. Their number is not
// bounded.
func (k *kernel) dumpConnections(f filter, each func(connection)) error {
	b := batch{}
	b.begin(ctGet, unix.NLM_F_DUMP, f.family, 0, "")
	b.buf = append(b.buf, f.attrs...)
	b.end(0)
	if err := unix.Sendto(k.fd, b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(k.fd, buf, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for m := range messages(buf[:n]) {
			switch {
			case m.kind == unix.NLMSG_DONE:
				return nil
			case m.kind == unix.NLMSG_ERROR && len(m.body) >= 4:
				return unix.Errno(-int32(native.Uint32(m.body)))
			case m.kind == ctNew:
				each(readConnection(m.body))
			}
		}
	}
}

func readConnection(body []byte) connection {
	c := connection{body: body}
	for kind, data := range attributes(body) {
		switch kind {
		case ctaTupleOrig:
			c.original = readTuple(data)
		case ctaTupleReply:
			c.reply = readTuple(data)
		case ctaStatus:
			c.status = number(data)
		case ctaMark:
			c.mark = number(data)
		case ctaProtoinfo:
			c.pickedUp = isPickedUp(data)
		}
	}
	return c
}

// key returns the attributes that identify the connection in requests.
func (c connection) key() []byte {
	b := batch{}
	for kind, data := range attributes(c.body) {
		switch kind {
		case ctaTupleOrig:
			b.bytes(kind|unix.NLA_F_NESTED, data)
		case ctaID, ctaZone:
			b.bytes(kind, data)
		}
	}
	return b.buf
}

// isPickedUp reports whether the kernel gave up following the windows of a TCP connection in an
// attribute CTA_PROTOINFO, as it does when it sees its first packet in the middle
// (IP_CT_TCP_FLAG_BE_LIBERAL; tcp_new, net/netfilter/nf_conntrack_proto_tcp.c).
func isPickedUp(protoinfo []byte) bool {
	const beLiberal = 1 << 3
	for kind, data := range nlsock.Attributes(protoinfo) {
		if kind != ctaProtoinfoTCP {
			continue
		}
		for kind, flags := range nlsock.Attributes(data) {
			if kind == ctaFlagsOriginal && len(flags) > 0 {
				return flags[0]&beLiberal != 0
			}
		}
	}
	return false
}

func readTuple(b []byte) (t tuple) {
	for kind, data := range nlsock.Attributes(b) {
		for part, value := range nlsock.Attributes(data) {
			switch {
			case kind == ctaTupleIP && (part == ctaIPv4Src || part == ctaIPv6Src):
				t.src, _ = netip.AddrFromSlice(value)
			case kind == ctaTupleIP && (part == ctaIPv4Dst || part == ctaIPv6Dst):
				t.dst, _ = netip.AddrFromSlice(value)
			case kind == ctaTupleProto && part == ctaProtoNum && len(value) == 1:
				t.protocol = packet.Protocol(value[0])
			case kind == ctaTupleProto && part == ctaProtoSrcPort && len(value) == 2:
				t.sport = binary.BigEndian.Uint16(value)
			case kind == ctaTupleProto && part == ctaProtoDstPort && len(value) == 2:
				t.dport = binary.BigEndian.Uint16(value)
			}
		}
	}
	return t
}

// changeBytes is about how much is sent to the kernel at a time. The answers must fit into the
// receive buffer.
const changeBytes = 8 << 10

// changeConnections deletes or changes connections: each body has the key of one, and what is to
// change. It returns how many still existed.
func (k *kernel) changeConnections(family uint8, kind uint16, bodies [][]byte) (n int, err error) {
	for len(bodies) > 0 {
		b := batch{}
		sent := 0
		for ; sent < len(bodies) && len(b.buf) < changeBytes; sent++ {
			b.begin(kind, unix.NLM_F_ACK, family, 0, "change connection")
			b.buf = append(b.buf, bodies[sent]...)
		}
		b.end(b.message)
		bodies = bodies[sent:]
		changed, err := k.changeBatch(b, sent)
		n += changed
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// changeBatch sends requests and reads as many answers. A connection may have ended meanwhile.
func (k *kernel) changeBatch(b batch, requests int) (n int, failed error) {
	if err := unix.Sendto(k.fd, b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 64<<10)
	for requests > 0 {
		size, _, err := unix.Recvfrom(k.fd, buf, 0)
		if err != nil {
			return n, os.NewSyscallError("recvfrom", err)
		}
		for m := range messages(buf[:size]) {
			if m.kind != unix.NLMSG_ERROR || len(m.body) < 4 {
				continue
			}
			requests--
			switch errno := unix.Errno(-int32(native.Uint32(m.body))); errno {
			case 0:
				n++
			case unix.ENOENT:
			default:
				failed = errno
			}
		}
	}
	return n, failed
}
