package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The splice tier has the guest's connections end in its own kernel, at sockets
// that the host's side holds (usernet.Gate). How they are led there:
//
//   - Rules leave the guest's first SYN on its way to the device. The host's side
//     judges it, connects, and writes it back. As it comes out of the device a
//     rule gives it to a listener on loopback that takes connections for every
//     address (TPROXY, Documentation/networking/tproxy.rst).
//   - When that answers, the peer and both ports go into a set. What the guest
//     sends to a peer of the set is marked, and routed again: a table of its own
//     delivers what is marked here, over loopback.
//   - Everything else takes the device, as it does without. So do packets of a
//     connection that is missing in the set: the host's side writes them back,
//     and a rule finds their socket and puts the connection into the set.
//
// The rules go with the socket that made them (NFT_TABLE_F_OWNER), which the
// host's side holds: when it dies they do. The guest owns its namespace and can
// add rules before ours; then its SYNs do not come through, and the host's side
// uses the device.

// Marks and numbers that nobody else should have.
const (
	markDivert   = 0x0c1ea701 // packets to be delivered to our sockets
	markOurs     = 0x0c1ea702 // packets that our sockets send
	divertTable  = 0x0c1ea7   // of routes
	divertMetric = 100        // priority of the rule that leads there
	rulesTable   = "cleat"
	rulesSet     = "spliced"
)

// How long a connection stays in the set, of which each may be put back: after
// its beginning, and after its end, when late packets still come.
const (
	setTimeout  = 10 * time.Minute
	setLinger   = 10 * time.Second
	setElements = 1 << 16
)

// diversion is one family's way to our sockets.
type diversion struct {
	family   byte // AF_INET, AF_INET6
	guest    netip.Addr
	index    uint32 // of the device
	listener netip.AddrPort
}

// setDivertSysctls lets the device bring packets that claim to be from here,
// which they are. A client's connection that ended lately may be followed by
// another between the same ports after a second, as on its own host.
func (i *Guest) setDivertSysctls() {
	if !i.plan.Splice || !i.plan.Addr4.IsValid() {
		return
	}
	for _, s := range [][2]string{
		{"net/ipv4/conf/" + i.plan.Interface + "/accept_local", "1"},
		{"net/ipv4/conf/" + i.plan.Interface + "/rp_filter", "0"},
		{"net/ipv4/conf/all/rp_filter", "0"},
	} {
		if err := sysctl(s[0], s[1]); err != nil {
			i.noSplice = fmt.Sprintf("set sysctl: %v", err)
		}
	}
	_ = sysctl("net/ipv4/tcp_tw_reuse", "1") // without, the device carries that
}

// divert opens the gate and hands its sockets to the host's side. What it can't
// do costs speed and nothing else: it is reported.
func (i *Guest) divert() error {
	if !i.plan.Splice || i.noSplice != "" {
		return nil
	}
	kinds, fds, err := i.openGate()
	defer func() { closeAll(fds) }()
	if err != nil {
		i.noSplice = err.Error()
		return nil
	}
	return i.end.send(report{Stage: stageSockets, Files: kinds}, fds...)
}

// openGate makes all that the gate consists of, for each family.
func (i *Guest) openGate() (kinds []kind, fds []int, err error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer conn.Close()
	index, err := linkIndex(conn, i.plan.Interface)
	if err != nil {
		return nil, nil, fmt.Errorf("find device %q: %w", i.plan.Interface, err)
	}
	var ways []diversion
	for _, f := range []struct {
		family           byte
		guest            netip.Prefix
		listener, caller kind
	}{
		{unix.AF_INET, i.plan.Addr4, kindGate4, kindCaller4},
		{unix.AF_INET6, i.plan.Addr6, kindGate6, kindCaller6},
	} {
		if !f.guest.IsValid() {
			continue
		}
		d := diversion{family: f.family, guest: f.guest.Addr(), index: uint32(index)}
		some, err := d.open(conn)
		if err != nil && f.family == unix.AF_INET6 && !i.plan.Need6 && noIPv6(err) {
			continue
		}
		fds = append(fds, some...)
		if err != nil {
			return nil, fds, err
		}
		kinds = append(kinds, f.listener, f.caller)
		ways = append(ways, d)
	}
	rules, err := installRules(ways)
	if rules >= 0 {
		fds = append(fds, rules)
	}
	return append(kinds, kindRules), fds, err
}

// open makes the family's sockets and routes.
func (d *diversion) open(conn *netlink.Conn) (fds []int, err error) {
	listener, err := d.listen()
	if err != nil {
		return nil, fmt.Errorf("make a transparent listener: %w", err)
	}
	fds = append(fds, listener)
	caller, err := unix.Socket(int(d.family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fds, fmt.Errorf("make socket: %w", err)
	}
	fds = append(fds, caller)
	for _, m := range []netlink.Message{d.routeMessage(), d.ruleMessage()} {
		if _, err := conn.Execute(m); err != nil && !errors.Is(err, unix.EEXIST) {
			return fds, fmt.Errorf("route what is for it: %w", err)
		}
	}
	return fds, nil
}

// listen makes the listener, on a free port of loopback.
func (d *diversion) listen() (int, error) {
	fd, err := unix.Socket(int(d.family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	level, transparent, at := unix.IPPROTO_IP, unix.IP_TRANSPARENT, unix.Sockaddr(&unix.SockaddrInet4{Addr: loopback(unix.AF_INET).As4()})
	if d.family == unix.AF_INET6 {
		level, transparent, at = unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, &unix.SockaddrInet6{Addr: loopback(unix.AF_INET6).As16()}
	}
	for _, o := range []struct{ level, name, value int }{
		{level, transparent, 1},
		{unix.SOL_SOCKET, unix.SO_MARK, markOurs},
		{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}, // of the sockets that come of it
	} {
		if err == nil {
			err = unix.SetsockoptInt(fd, o.level, o.name, o.value)
		}
	}
	if err == nil {
		err = unix.Bind(fd, at)
	}
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err == nil {
		at, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		d.listener = netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *unix.SockaddrInet6:
		d.listener = netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
	}
	return fd, nil
}

// routeMessage delivers here what the table is asked about.
func (d *diversion) routeMessage() netlink.Message {
	// struct rtmsg: see defaultRouteMessage
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[5], b[6], b[7] = d.family, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL
	return message(unix.RTM_NEWROUTE, acknowledged|netlink.Create|netlink.Excl, b, func(ae *netlink.AttributeEncoder) {
		ae.Uint32(unix.RTA_TABLE, divertTable)
		ae.Uint32(unix.RTA_OIF, loopbackIndex)
	})
}

// ruleMessage has the table asked about what is marked.
func (d *diversion) ruleMessage() netlink.Message {
	// struct fib_rule_hdr: family, lengths of destination and source, TOS, table,
	// two reserved, action, flags
	const size = 12
	b := make([]byte, size)
	b[0], b[7] = d.family, unix.FR_ACT_TO_TBL
	return message(unix.RTM_NEWRULE, acknowledged|netlink.Create|netlink.Excl, b, func(ae *netlink.AttributeEncoder) {
		ae.Uint32(unix.FRA_TABLE, divertTable)
		ae.Uint32(unix.FRA_FWMARK, markDivert)
		ae.Uint32(unix.FRA_FWMASK, 0xffffffff)
		ae.Uint32(unix.FRA_PRIORITY, divertMetric)
	})
}

// installRules makes the tables. The descriptor is the socket that they go with.
func installRules(ways []diversion) (fd int, err error) {
	fd = -1
	var socket *netlink.Conn
	keep := func(c *netlink.Conn) error {
		socket = c
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var failed error
		err = raw.Control(func(own uintptr) { fd, failed = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
		return errors.Join(err, failed)
	}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(keep))
	if err != nil {
		return fd, fmt.Errorf("open a netlink socket for rules: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }() // the copy lives on
	if err := ownTables(socket, ways); err != nil {
		return fd, fmt.Errorf("make table for rules: %w", err)
	}
	for _, d := range ways {
		if err := d.addRules(conn); err != nil {
			return fd, fmt.Errorf("make rules: %w", err)
		}
	}
	if err := conn.Flush(); err != nil {
		return fd, fmt.Errorf("make rules: %w", err)
	}
	return fd, nil
}

// ownTables makes tables that have an owner, which the library can't.
func ownTables(conn *netlink.Conn, ways []diversion) error {
	// struct nfgenmsg: family, version, number of the subsystem as big endian
	about := func(family byte, subsystem byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, subsystem} }
	batch := func(kind netlink.HeaderType) netlink.Message {
		return message(kind, netlink.Request, about(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES), nil)
	}
	msgs := []netlink.Message{batch(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, d := range ways {
		const newTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
		msgs = append(msgs, message(newTable, acknowledged|netlink.Create, about(d.family, 0), func(ae *netlink.AttributeEncoder) {
			ae.String(unix.NFTA_TABLE_NAME, rulesTable)
			ae.Bytes(unix.NFTA_TABLE_FLAGS, []byte{0, 0, 0, tableOwned})
		}))
	}
	if _, err := conn.SendMessages(append(msgs, batch(unix.NFNL_MSG_BATCH_END))); err != nil {
		return err
	}
	var errs error
	for range ways {
		_, err := conn.Receive()
		errs = errors.Join(errs, err)
	}
	return errs
}

// tableOwned is NFT_TABLE_F_OWNER (include/uapi/linux/netfilter/nf_tables.h,
// since Linux 5.12).
const tableOwned = 0x2

// Where the fields are that rules look at.
const (
	tcpSource, tcpDestination, tcpFlags = 0, 2, 13
	flagFIN, flagSYN, flagRST, flagACK  = 0x01, 0x02, 0x04, 0x10
)

// Registers: a value to compare, and from keyRegister on a connection's key,
// which is the peer's address, its port, and the guest's.
const (
	valueRegister = unix.NFT_REG_1
	keyRegister   = unix.NFT_REG32_04
)

// addressField is where an address is in the header, and its length.
func (d *diversion) addressField(source bool) (offset, size uint32) {
	switch {
	case d.family == unix.AF_INET && source:
		return 12, 4
	case d.family == unix.AF_INET:
		return 16, 4
	case source:
		return 8, 16
	}
	return 24, 16
}

// rule is a list of expressions that grows.
type rule []expr.Any

func (r rule) with(e ...expr.Any) rule { return append(r[:len(r):len(r)], e...) }

// meta compares what the kernel knows about a packet.
func (r rule) meta(key expr.MetaKey, op expr.CmpOp, value []byte) rule {
	return r.with(&expr.Meta{Key: key, Register: valueRegister}, &expr.Cmp{Op: op, Register: valueRegister, Data: value})
}

// flags compares TCP flags under a mask.
func (r rule) flags(mask byte, op expr.CmpOp, value byte) rule {
	return r.with(
		&expr.Payload{DestRegister: valueRegister, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
		&expr.Bitwise{SourceRegister: valueRegister, DestRegister: valueRegister, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: valueRegister, Data: []byte{value}},
	)
}

// source compares the source address.
func (r rule) source(d *diversion, value netip.Addr) rule {
	offset, size := d.addressField(true)
	return r.with(
		&expr.Payload{DestRegister: valueRegister, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Cmp{Op: expr.CmpOpEq, Register: valueRegister, Data: value.AsSlice()},
	)
}

// key loads a connection's key; from the guest, or toward it.
func (r rule) key(d *diversion, toGuest bool) rule {
	offset, size := d.addressField(toGuest)
	peer, guest := uint32(tcpDestination), uint32(tcpSource)
	if toGuest {
		peer, guest = guest, peer
	}
	return r.with(
		&expr.Payload{DestRegister: keyRegister, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Payload{DestRegister: keyRegister + size/4, Base: expr.PayloadBaseTransportHeader, Offset: peer, Len: 2},
		&expr.Payload{DestRegister: keyRegister + size/4 + 1, Base: expr.PayloadBaseTransportHeader, Offset: guest, Len: 2},
	)
}

// mark sets the packet's mark.
func (r rule) mark(value uint32) rule {
	return r.with(&expr.Immediate{Register: valueRegister, Data: number(value)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: valueRegister})
}

func (r rule) accept() rule { return r.with(&expr.Verdict{Kind: expr.VerdictAccept}) }

func number(v uint32) []byte { return native.AppendUint32(nil, v) }

// addRules adds one family's table.
func (d *diversion) addRules(c *nftables.Conn) error {
	family, address := nftables.TableFamilyIPv4, nftables.TypeIPAddr
	if d.family == unix.AF_INET6 {
		family, address = nftables.TableFamilyIPv6, nftables.TypeIP6Addr
	}
	table := &nftables.Table{Name: rulesTable, Family: family}
	key, err := nftables.ConcatSetType(address, nftables.TypeInetService, nftables.TypeInetService)
	if err != nil {
		return err
	}
	set := &nftables.Set{Table: table, Name: rulesSet, KeyType: key, Concatenation: true, Dynamic: true, HasTimeout: true, Timeout: setTimeout, Size: setElements}
	if err := c.AddSet(set, nil); err != nil {
		return err
	}
	element := func(operation int, timeout time.Duration) expr.Any {
		return &expr.Dynset{SrcRegKey: keyRegister, SetName: set.Name, SetID: set.ID, Operation: uint32(operation), Timeout: timeout}
	}
	remember, forget := element(unix.NFT_DYNSET_OP_UPDATE, 0), element(dynsetDelete, 0)
	linger := element(unix.NFT_DYNSET_OP_UPDATE, setLinger)
	add := func(chain *nftables.Chain, rules ...rule) {
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: r})
		}
	}
	var r rule
	device, tcp := number(d.index), []byte{unix.IPPROTO_TCP}

	fromDevice := c.AddChain(&nftables.Chain{Name: "from-device", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle})
	add(fromDevice,
		r.meta(expr.MetaKeyIIF, expr.CmpOpNeq, device).accept(),
		r.meta(expr.MetaKeyL4PROTO, expr.CmpOpNeq, tcp).accept(),
		// The guest's own SYN has come back.
		r.flags(flagFIN|flagSYN|flagRST|flagACK, expr.CmpOpEq, flagSYN).source(d, d.guest).with(d.toListener()...).mark(markDivert).accept(),
		// A handshake by the device: what the set says about its ports is old.
		r.flags(flagSYN, expr.CmpOpEq, flagSYN).key(d, true).with(forget).accept(),
		// A packet of a connection that the set has lost.
		r.with(&expr.Socket{Key: expr.SocketKeyTransparent, Register: valueRegister}, &expr.Cmp{Op: expr.CmpOpEq, Register: valueRegister, Data: []byte{1}}).
			key(d, false).with(remember).mark(markDivert).accept(),
	)
	ours := c.AddChain(&nftables.Chain{Name: "ours", Table: table})
	add(ours,
		r.source(d, d.listener.Addr()).accept(), // sockets being made
		r.flags(flagSYN, expr.CmpOpEq, flagSYN).key(d, true).with(remember).accept(),
		r.flags(flagFIN|flagRST, expr.CmpOpNeq, 0).key(d, true).with(linger).accept(),
	)
	sent := c.AddChain(&nftables.Chain{Name: "sent", Table: table, Type: nftables.ChainTypeRoute, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityMangle})
	add(sent,
		r.meta(expr.MetaKeyMARK, expr.CmpOpEq, number(markOurs)).with(&expr.Verdict{Kind: expr.VerdictGoto, Chain: ours.Name}),
		r.meta(expr.MetaKeyOIF, expr.CmpOpNeq, device).accept(),
		r.meta(expr.MetaKeyL4PROTO, expr.CmpOpNeq, tcp).accept(),
		r.flags(flagSYN|flagACK, expr.CmpOpEq, flagSYN).key(d, false).with(forget).accept(),
		r.key(d, false).with(&expr.Lookup{SourceRegister: keyRegister, SetName: set.Name, SetID: set.ID, Invert: true}).accept(),
		r.flags(flagFIN|flagRST, expr.CmpOpNeq, 0).key(d, false).with(linger),
		r.mark(markDivert).accept(),
	)
	return nil
}

// dynsetDelete is NFT_DYNSET_OP_DELETE (include/uapi/linux/netfilter/nf_tables.h,
// since Linux 5.4).
const dynsetDelete = 2

// toListener is TPROXY to the listener.
func (d *diversion) toListener() []expr.Any {
	// The address may take four registers.
	const portRegister = keyRegister
	port := []byte{byte(d.listener.Port() >> 8), byte(d.listener.Port())}
	return []expr.Any{
		&expr.Immediate{Register: valueRegister, Data: d.listener.Addr().AsSlice()},
		&expr.Immediate{Register: portRegister, Data: port},
		&expr.TProxy{Family: d.family, TableFamily: d.family, RegAddr: valueRegister, RegPort: portRegister},
	}
}

// checkGate looks at a socket that is said to be one of the gate's.
func checkGate(fd int) error {
	if proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || proto != unix.IPPROTO_TCP {
		return fmt.Errorf("look at gate: it is no TCP socket: %w", errors.Join(err, os.ErrInvalid))
	}
	return nil
}
