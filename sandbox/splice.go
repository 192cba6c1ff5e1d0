package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"cleat/internal/localsock"
	"cleat/internal/sys"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The splice tier terminates the guest's TCP connections in its own kernel, at sockets that
// the host side holds (usernet.Gate). Packets are steered to them as follows:
//
//   - Rules let the guest's first SYN leave by the device. The host side judges it, connects,
//     and writes it back to the device. There a rule hands it to a listener on loopback that
//     accepts connections for every address (TPROXY,
//     Documentation/networking/tproxy.rst).
//   - When the listener answers, a rule adds the peer's address and both ports to a set.
//     Packets of the guest to a peer in the set are marked and routed again: a routing table
//     of our own delivers marked packets locally, over loopback.
//   - All other packets take the device. So do packets of a connection that has dropped out
//     of the set: the host side writes them back, and a rule finds their socket and adds the
//     connection again.
//
// The rules belong to the netlink socket that made them (NFT_TABLE_F_OWNER). The host side
// holds that socket, so the rules disappear when it dies. The guest owns its namespace and
// can add rules that run before ours. Its SYNs then do not come back, and the host side
// carries the connections over the device.

// Marks and identifiers, chosen so that nobody else is likely to use them.
const (
	markToListener = 0x0c1ea701 // packets to deliver to our sockets
	markOurs       = 0x0c1ea702 // packets that our sockets send
	spliceTable    = 0x0c1ea7   // routing table
	splicePriority = 100        // of the routing rule that leads to spliceTable
	nftTable       = "cleat"
	nftSet         = "spliced"
)

// Timeouts and size of the set. A connection that has dropped out can always be added again.
const (
	setTimeout  = 10 * time.Minute // from the start of a connection
	setLinger   = 10 * time.Second // from its end, for packets that arrive late
	setElements = 1 << 16
)

// spliceFamily is the splice tier of one address family.
type spliceFamily struct {
	family   byte // AF_INET, AF_INET6
	guest    netip.Addr
	device   uint32 // interface index
	listener netip.AddrPort
}

// setSpliceSysctls makes the device accept packets with a local source address: the guest's
// own SYNs, as the host side writes them back. It also lets a client reuse a pair of ports
// one second after a connection has ended, as loopback does; where that can't be set the
// device carries such a connection.
func (g *Guest) setSpliceSysctls() {
	if !g.plan.Splice || !g.plan.Addr4.IsValid() {
		return
	}
	for _, s := range [][2]string{
		{"net/ipv4/conf/" + g.plan.Interface + "/accept_local", "1"},
		{"net/ipv4/conf/" + g.plan.Interface + "/rp_filter", "0"},
		{"net/ipv4/conf/all/rp_filter", "0"},
	} {
		if err := setSysctl(s[0], s[1]); err != nil {
			g.noSplice = fmt.Sprintf("set sysctl: %v", err)
		}
	}
	_ = setSysctl("net/ipv4/tcp_tw_reuse", "1")
}

// setUpSplice prepares the splice tier and hands its sockets to the host side. A failure
// costs only speed: it is reported, and no error.
func (g *Guest) setUpSplice(h *netlink.Handle, device netlink.Link) error {
	if !g.plan.Splice || g.noSplice != "" {
		return nil
	}
	kinds, fds, err := g.openGate(h, device)
	defer func() { closeAll(fds) }()
	if err != nil {
		g.noSplice = err.Error()
		return nil
	}
	return g.host.send(report{Stage: stageSockets, Files: kinds}, fds...)
}

// openGate opens the sockets of the splice tier and installs its routes and rules.
func (g *Guest) openGate(h *netlink.Handle, device netlink.Link) (kinds []fdKind, fds []int, err error) {
	var families []spliceFamily
	for _, f := range []struct {
		family           byte
		guest            netip.Prefix
		listener, caller fdKind
	}{
		{unix.AF_INET, g.plan.Addr4, fdGate4, fdCaller4},
		{unix.AF_INET6, g.plan.Addr6, fdGate6, fdCaller6},
	} {
		if !f.guest.IsValid() {
			continue
		}
		s := spliceFamily{family: f.family, guest: f.guest.Addr(), device: uint32(device.Attrs().Index)}
		opened, err := s.open(h)
		if err != nil && f.family == unix.AF_INET6 && !g.plan.Need6 && noIPv6(err) {
			closeAll(opened)
			continue
		}
		fds = append(fds, opened...)
		if err != nil {
			return nil, fds, err
		}
		kinds = append(kinds, f.listener, f.caller)
		families = append(families, s)
	}
	rules, err := installRules(families)
	if rules >= 0 {
		fds = append(fds, rules)
	}
	return append(kinds, fdRules), fds, err
}

// open opens the family's sockets and adds its routes.
func (s *spliceFamily) open(h *netlink.Handle) (fds []int, err error) {
	listener, err := s.listen()
	if err != nil {
		return nil, fmt.Errorf("open a transparent listener: %w", err)
	}
	fds = append(fds, listener)
	caller, err := unix.Socket(int(s.family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fds, os.NewSyscallError("socket", err)
	}
	fds = append(fds, caller)
	everything := ipNet(netip.PrefixFrom(s.guest, 0).Masked())
	route := &netlink.Route{LinkIndex: loopbackIndex, Dst: everything, Table: spliceTable, Type: unix.RTN_LOCAL,
		Scope: netlink.SCOPE_HOST, Protocol: unix.RTPROT_STATIC}
	rule, mask := netlink.NewRule(), uint32(0xffffffff)
	rule.Family, rule.Table, rule.Priority, rule.Mark, rule.Mask = int(s.family), spliceTable, splicePriority, markToListener, &mask
	for _, add := range []func() error{func() error { return h.RouteAdd(route) }, func() error { return h.RuleAdd(rule) }} {
		if err := add(); err != nil && !errors.Is(err, unix.EEXIST) {
			return fds, fmt.Errorf("route marked packets to loopback: %w", err)
		}
	}
	return fds, nil
}

// listen opens the transparent listener on a free port of loopback.
func (s *spliceFamily) listen() (listener int, err error) {
	fd, err := unix.Socket(int(s.family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	level, transparent, at := unix.IPPROTO_IP, unix.IP_TRANSPARENT, loopback4
	if s.family == unix.AF_INET6 {
		level, transparent, at = unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, netip.IPv6Loopback()
	}
	for _, o := range []struct{ level, name, value int }{
		{level, transparent, 1},
		{unix.SOL_SOCKET, unix.SO_MARK, markOurs},
		{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}, // inherited by the accepted sockets
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return -1, err
		}
	}
	if err := bindSocket(fd, netip.AddrPortFrom(at, 0)); err != nil {
		return -1, err
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return -1, err
	}
	own, errno := sys.LocalAddress(fd)
	if errno != 0 {
		return -1, errno
	}
	s.listener = own.AddrPort()
	return fd, nil
}

// installRules creates the nftables tables. It returns a descriptor of the socket that owns
// them, or -1.
func installRules(families []spliceFamily) (fd int, err error) {
	fd = -1
	var socket *mdnetlink.Conn
	duplicate := func(c *mdnetlink.Conn) error {
		socket = c
		return localsock.Control(c, func(own int) (err error) {
			fd, err = unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 0)
			return err
		})
	}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(duplicate))
	if err != nil {
		return fd, fmt.Errorf("open a netlink socket for nftables: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }() // the duplicate keeps the socket open
	if err := createOwnedTables(socket, families); err != nil {
		return fd, fmt.Errorf("create nftables tables: %w", err)
	}
	for _, s := range families {
		if err := s.addRules(conn); err != nil {
			return fd, fmt.Errorf("add nftables rules: %w", err)
		}
	}
	if err := conn.Flush(); err != nil {
		return fd, fmt.Errorf("add nftables rules: %w", err)
	}
	return fd, nil
}

// createOwnedTables creates a table for each family, owned by conn's socket. The messages
// are written by hand because package nftables creates tables without flags only.
func createOwnedTables(conn *mdnetlink.Conn, families []spliceFamily) error {
	message := func(kind mdnetlink.HeaderType, flags mdnetlink.HeaderFlags, family, resource byte, attrs ...mdnetlink.Attribute) mdnetlink.Message {
		data, _ := mdnetlink.MarshalAttributes(attrs) // fails only for attributes over 64 KiB
		// struct nfgenmsg: family, version, resource id in network byte order
		return mdnetlink.Message{Header: mdnetlink.Header{Type: kind, Flags: mdnetlink.Request | flags}, Data: append([]byte{family, unix.NFNETLINK_V0, 0, resource}, data...)}
	}
	const (
		newTable  = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
		flagOwner = 0x2 // NFT_TABLE_F_OWNER (include/uapi/linux/netfilter/nf_tables.h, since Linux 5.12)
	)
	msgs := []mdnetlink.Message{message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)}
	for _, s := range families {
		msgs = append(msgs, message(newTable, mdnetlink.Acknowledge|mdnetlink.Create, s.family, 0,
			mdnetlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(nftTable), 0)},
			mdnetlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: []byte{0, 0, 0, flagOwner}}))
	}
	msgs = append(msgs, message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES))
	if _, err := conn.SendMessages(msgs); err != nil {
		return err
	}
	var errs error
	for range families {
		_, err := conn.Receive()
		errs = errors.Join(errs, err)
	}
	return errs
}

// Offsets of TCP header fields, and TCP flags.
const (
	tcpSource, tcpDestination, tcpFlags = 0, 2, 13
	flagFIN, flagSYN, flagRST, flagACK  = 0x01, 0x02, 0x04, 0x10
)

// nftables registers: one for a value to compare, and the first of those that hold a
// connection's key: the peer's address and port, and the guest's port.
const (
	valueRegister = unix.NFT_REG_1
	keyRegister   = unix.NFT_REG32_04
)

// nftRule is a list of expressions. Each method returns a longer copy.
type nftRule []expr.Any

func (r nftRule) with(e ...expr.Any) nftRule { return append(r[:len(r):len(r)], e...) }

// meta compares a property that the kernel keeps for a packet.
func (r nftRule) meta(key expr.MetaKey, op expr.CmpOp, value []byte) nftRule {
	return r.with(&expr.Meta{Key: key, Register: valueRegister}, &expr.Cmp{Op: op, Register: valueRegister, Data: value})
}

// flags compares the TCP flags under a mask.
func (r nftRule) flags(mask byte, op expr.CmpOp, value byte) nftRule {
	return r.with(
		&expr.Payload{DestRegister: valueRegister, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
		&expr.Bitwise{SourceRegister: valueRegister, DestRegister: valueRegister, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: valueRegister, Data: []byte{value}},
	)
}

// loadAddress loads the source or destination address of a packet.
func (s *spliceFamily) loadAddress(source bool, register uint32) *expr.Payload {
	offset, size := uint32(16), uint32(4)
	if s.family == unix.AF_INET6 {
		offset, size = 24, 16
	}
	if source {
		offset -= size
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

func (r nftRule) source(s *spliceFamily, value netip.Addr) nftRule {
	return r.with(s.loadAddress(true, valueRegister), &expr.Cmp{Op: expr.CmpOpEq, Register: valueRegister, Data: value.AsSlice()})
}

// key loads the connection's key. The packet is the guest's, or with toGuest one to it.
func (r nftRule) key(s *spliceFamily, toGuest bool) nftRule {
	address := s.loadAddress(toGuest, keyRegister)
	peer, guest := uint32(tcpDestination), uint32(tcpSource)
	if toGuest {
		peer, guest = guest, peer
	}
	ports := keyRegister + address.Len/4
	return r.with(address,
		&expr.Payload{DestRegister: ports, Base: expr.PayloadBaseTransportHeader, Offset: peer, Len: 2},
		&expr.Payload{DestRegister: ports + 1, Base: expr.PayloadBaseTransportHeader, Offset: guest, Len: 2},
	)
}

func (r nftRule) mark(value uint32) nftRule {
	return r.with(&expr.Immediate{Register: valueRegister, Data: native32(value)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: valueRegister})
}

func (r nftRule) accept() nftRule { return r.with(&expr.Verdict{Kind: expr.VerdictAccept}) }

func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// addRules adds the family's set, chains and rules to its table.
func (s *spliceFamily) addRules(c *nftables.Conn) error {
	family, address := nftables.TableFamilyIPv4, nftables.TypeIPAddr
	if s.family == unix.AF_INET6 {
		family, address = nftables.TableFamilyIPv6, nftables.TypeIP6Addr
	}
	table := &nftables.Table{Name: nftTable, Family: family}
	key, err := nftables.ConcatSetType(address, nftables.TypeInetService, nftables.TypeInetService)
	if err != nil {
		return err
	}
	set := &nftables.Set{Table: table, Name: nftSet, KeyType: key, Concatenation: true, Dynamic: true, HasTimeout: true, Timeout: setTimeout, Size: setElements}
	if err := c.AddSet(set, nil); err != nil {
		return err
	}
	element := func(operation int, timeout time.Duration) expr.Any {
		return &expr.Dynset{SrcRegKey: keyRegister, SetName: set.Name, SetID: set.ID, Operation: uint32(operation), Timeout: timeout}
	}
	const opDelete = 2 // NFT_DYNSET_OP_DELETE (include/uapi/linux/netfilter/nf_tables.h, since Linux 5.4)
	remember, forget := element(unix.NFT_DYNSET_OP_UPDATE, 0), element(opDelete, 0)
	linger := element(unix.NFT_DYNSET_OP_UPDATE, setLinger)
	add := func(chain nftables.Chain, rules ...nftRule) {
		chain.Table = table
		added := c.AddChain(&chain)
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: added, Exprs: r})
		}
	}
	var r nftRule
	device, tcp := native32(s.device), []byte{unix.IPPROTO_TCP}

	add(nftables.Chain{Name: "from-device", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle},
		r.meta(expr.MetaKeyIIF, expr.CmpOpNeq, device).accept(),
		r.meta(expr.MetaKeyL4PROTO, expr.CmpOpNeq, tcp).accept(),
		// The guest's own SYN, written back by the host side.
		r.flags(flagFIN|flagSYN|flagRST|flagACK, expr.CmpOpEq, flagSYN).source(s, s.guest).with(s.toListener()...).mark(markToListener).accept(),
		// A handshake over the device: the set's entry for these ports is stale.
		r.flags(flagSYN, expr.CmpOpEq, flagSYN).key(s, true).with(forget).accept(),
		// A packet of a connection that has dropped out of the set.
		r.with(&expr.Socket{Key: expr.SocketKeyTransparent, Register: valueRegister}, &expr.Cmp{Op: expr.CmpOpEq, Register: valueRegister, Data: []byte{1}}).
			key(s, false).with(remember).mark(markToListener).accept(),
	)
	const ours = "ours"
	add(nftables.Chain{Name: ours},
		r.source(s, s.listener.Addr()).accept(), // sockets that the host side is creating
		r.flags(flagSYN, expr.CmpOpEq, flagSYN).key(s, true).with(remember).accept(),
		r.flags(flagFIN|flagRST, expr.CmpOpNeq, 0).key(s, true).with(linger).accept(),
	)
	add(nftables.Chain{Name: "sent", Type: nftables.ChainTypeRoute, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityMangle},
		r.meta(expr.MetaKeyMARK, expr.CmpOpEq, native32(markOurs)).with(&expr.Verdict{Kind: expr.VerdictGoto, Chain: ours}),
		r.meta(expr.MetaKeyOIF, expr.CmpOpNeq, device).accept(),
		r.meta(expr.MetaKeyL4PROTO, expr.CmpOpNeq, tcp).accept(),
		r.flags(flagSYN|flagACK, expr.CmpOpEq, flagSYN).key(s, false).with(forget).accept(),
		r.key(s, false).with(&expr.Lookup{SourceRegister: keyRegister, SetName: set.Name, SetID: set.ID, Invert: true}).accept(),
		r.flags(flagFIN|flagRST, expr.CmpOpNeq, 0).key(s, false).with(linger),
		r.mark(markToListener).accept(),
	)
	return nil
}

// toListener redirects a packet to the listener (TPROXY).
func (s *spliceFamily) toListener() []expr.Any {
	const portRegister = keyRegister // the address may take the four registers before it
	port := binary.BigEndian.AppendUint16(nil, s.listener.Port())
	return []expr.Any{
		&expr.Immediate{Register: valueRegister, Data: s.listener.Addr().AsSlice()},
		&expr.Immediate{Register: portRegister, Data: port},
		&expr.TProxy{Family: s.family, TableFamily: s.family, RegAddr: valueRegister, RegPort: portRegister},
	}
}
