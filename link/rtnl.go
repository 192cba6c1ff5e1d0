package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"cleat/netns"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

type attribute = netlink.Attribute

// rtnl is a route netlink socket in one namespace. It speaks in raw
// attributes, because links have more of them than the netlink library's types,
// and asks for extended acknowledgements, in which the kernel says what it
// objects to.
type rtnl struct {
	conn    *netlink.Conn
	ns      *netns.NS
	parents map[int]string // names, by number, that were looked up on the way
}

func dial(ns *netns.NS) (*rtnl, error) {
	var c *netlink.Conn
	err := ns.Do(func() error {
		var err error
		c, err = netlink.Dial(unix.NETLINK_ROUTE, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open route netlink in %s: %w", ns, err)
	}
	// Kernels before 4.12 have no extended acknowledgements; errors are then
	// terse, that is all.
	_ = c.SetOption(netlink.ExtendedAcknowledge, true)
	return &rtnl{conn: c, ns: ns, parents: map[int]string{}}, nil
}

func (r *rtnl) Close() error { return r.conn.Close() }

// sockets are those that one operation has open, one a namespace.
type sockets struct{ open []*rtnl }

// dial is the socket in ns, opened if it is not yet. It stays open until close.
func (s *sockets) dial(ns *netns.NS) (*rtnl, error) {
	for _, r := range s.open {
		if r.ns == ns {
			return r, nil
		}
	}
	r, err := dial(ns)
	if err == nil {
		s.open = append(s.open, r)
	}
	return r, err
}

func (s *sockets) close() {
	for _, r := range s.open {
		r.Close()
	}
}

// ifinfo is struct ifinfomsg (include/uapi/linux/rtnetlink.h).
func ifinfo(family byte, index int) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	b[0] = family
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	return b
}

// execute sends one request about a link and returns the answers.
func (r *rtnl) execute(typ, flags uint16, header []byte, attrs []attribute) ([]netlink.Message, error) {
	payload, err := pack(attrs)
	if err != nil {
		return nil, fmt.Errorf("encode netlink attributes: %w", err)
	}
	return r.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request | netlink.HeaderFlags(flags)},
		Data:   append(header, payload...),
	})
}

// pack and unpack convert attributes to and from the bytes of a nest.
func pack(all []attribute) ([]byte, error) { return netlink.MarshalAttributes(all) }

func unpack(b []byte) ([]attribute, error) { return netlink.UnmarshalAttributes(b) }

// nest is an attribute that holds others.
func nest(typ uint16, inner []attribute) (attribute, error) {
	b, err := pack(inner)
	return attribute{Type: typ | netlink.Nested, Data: b}, err
}

func uint32Attr(typ uint16, n int) attribute {
	return attribute{Type: typ, Data: putUint(uint32(n), 4, false)}
}

func stringAttr(typ uint16, s string) attribute {
	return attribute{Type: typ, Data: append([]byte(s), 0)}
}

// attributes are the shared parameters as a link message has them.
func (a Attrs) attributes() []attribute {
	out := []attribute{stringAttr(unix.IFLA_IFNAME, a.Name)}
	if a.MTU != 0 {
		out = append(out, uint32Attr(unix.IFLA_MTU, a.MTU))
	}
	if a.MAC != (MAC{}) {
		out = append(out, attribute{Type: unix.IFLA_ADDRESS, Data: a.MAC[:]})
	}
	if a.TxQueueLen != 0 {
		out = append(out, uint32Attr(unix.IFLA_TXQLEN, a.TxQueueLen))
	}
	return out
}

// request is a link to be made, in the kernel's terms.
type request struct {
	kind   string
	attrs  Attrs
	parent string      // becomes IFLA_LINK, looked up where the request is sent
	top    []attribute // more attributes of the link itself
	fields []field     // IFLA_INFO_DATA
	data   []attribute // more of IFLA_INFO_DATA
}

// newLink makes a link directly in the namespace to.
func (r *rtnl) newLink(q request, to *netns.NS) error {
	inner, err := encodeFields(q.kind, q.fields, r)
	if err != nil {
		return err
	}
	data, err := nest(unix.IFLA_INFO_DATA, append(inner, q.data...))
	if err != nil {
		return err
	}
	info, err := nest(unix.IFLA_LINKINFO, []attribute{stringAttr(unix.IFLA_INFO_KIND, q.kind), data})
	if err != nil {
		return err
	}
	top := append(q.attrs.attributes(), q.top...)
	if q.parent != "" {
		p, err := r.parent(q)
		if err != nil {
			return err
		}
		top = append(top, uint32Attr(unix.IFLA_LINK, p.index))
	}
	if to != r.ns {
		top = append(top, uint32Attr(unix.IFLA_NET_NS_FD, to.Fd()))
	}
	top = append(top, info)
	_, err = r.execute(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, ifinfo(unix.AF_UNSPEC, 0), top)
	return asParamError(q, top, err)
}

// parent looks up the link that a new one is to stand on. Drivers refuse an MTU
// that is larger than the parent's without saying so; this does.
func (r *rtnl) parent(q request) (*linkInfo, error) {
	p, err := r.find(q.parent)
	if errors.Is(err, unix.ENODEV) {
		return nil, paramError(q.kind, "parent", q.parent, "a link that exists in "+r.ns.String())
	}
	if err != nil {
		return nil, fmt.Errorf("find link %q in %s: %w", q.parent, r.ns, err)
	}
	if most := p.attrs().MTU; q.attrs.MTU > most {
		return nil, paramError(q.kind, "mtu", q.attrs.MTU, fmt.Sprintf("at most the parent's, %d bytes", most))
	}
	r.parents[p.index] = p.name
	return p, nil
}

// blame turns a refusal that points at an attribute of the request into a
// *ParamError for the parameter behind it. attrs is what was sent.
func asParamError(q request, attrs []attribute, err error) error {
	var op *netlink.OpError
	if !errors.As(err, &op) || op.Message == "" {
		return err
	}
	header := unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	path := attributeAt(attrs, op.Offset-header)
	bad := func(f field) bool {
		return f.name != "" && f.attr != 0 && slices.Equal(path, []uint16{unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA, f.attr})
	}
	for typ, f := range map[uint16]field{
		unix.IFLA_MTU:     {name: "mtu", val: u32(&q.attrs.MTU)},
		unix.IFLA_ADDRESS: {name: "mac", val: hardware{p: &q.attrs.MAC}},
	} {
		if slices.Equal(path, []uint16{typ}) {
			return &ParamError{Kind: q.kind, Param: f.name, Value: f.val.text(), Allowed: "the kernel says: " + op.Message}
		}
	}
	if i := slices.IndexFunc(q.fields, bad); i >= 0 {
		f := q.fields[i]
		return &ParamError{Kind: q.kind, Param: f.name, Value: f.val.text(), Allowed: f.val.allowed() + "; the kernel says: " + op.Message}
	}
	return kernelError(err)
}

// plain is err with the kernel's own words, if it sent any.
func kernelError(err error) error {
	var op *netlink.OpError
	if !errors.As(err, &op) || op.Message == "" {
		return err
	}
	return &KernelError{Message: op.Message, Errno: op.Err}
}

// attributeAt is the path of types to the attribute that starts at offset.
func attributeAt(attrs []attribute, offset int) []uint16 {
	for _, a := range attrs {
		size := unix.NLA_HDRLEN + (len(a.Data)+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)
		typ := a.Type &^ netlink.Nested
		switch {
		case offset == 0:
			return []uint16{typ}
		case offset > 0 && offset < size && a.Type&netlink.Nested != 0:
			inner, err := unpack(a.Data)
			if err != nil {
				return nil
			}
			return append([]uint16{typ}, attributeAt(inner, offset-unix.NLA_HDRLEN)...)
		}
		offset -= size
	}
	return nil
}

// moveAndRename puts a link into another namespace under its final name.
func (r *rtnl) moveAndRename(index int, to *netns.NS, name string) error {
	_, err := r.execute(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(unix.AF_UNSPEC, index),
		[]attribute{uint32Attr(unix.IFLA_NET_NS_FD, to.Fd()), stringAttr(unix.IFLA_IFNAME, name)})
	return err
}

func (r *rtnl) delLink(index int) error {
	_, err := r.execute(unix.RTM_DELLINK, unix.NLM_F_ACK, ifinfo(unix.AF_UNSPEC, index), nil)
	return err
}

// report is what the kernel says a link is.
type linkInfo struct {
	index     int
	name      string
	kind      string
	up        bool // somebody has brought it up
	top       map[uint16][]byte
	data      map[uint16][]byte // IFLA_INFO_DATA
	slaveData map[uint16][]byte // IFLA_INFO_SLAVE_DATA
}

// find reports the link with this name.
func (r *rtnl) find(name string) (*linkInfo, error) {
	return r.get(ifinfo(unix.AF_UNSPEC, 0), []attribute{stringAttr(unix.IFLA_IFNAME, name)})
}

// byIndex reports the link with this number.
func (r *rtnl) byIndex(index int) (*linkInfo, error) {
	return r.get(ifinfo(unix.AF_UNSPEC, index), nil)
}

func (r *rtnl) get(header []byte, attrs []attribute) (*linkInfo, error) {
	answers, err := r.execute(unix.RTM_GETLINK, 0, header, attrs)
	if err != nil {
		return nil, err
	}
	for _, m := range answers {
		if m.Header.Type == unix.RTM_NEWLINK && len(m.Data) >= unix.SizeofIfInfomsg {
			return parseReport(m.Data)
		}
	}
	return nil, unix.ENODEV
}

func parseReport(b []byte) (*linkInfo, error) {
	top, err := attributeMap(b[unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, err
	}
	rep := &linkInfo{
		index: int(binary.NativeEndian.Uint32(b[4:])),
		name:  cstring(top[unix.IFLA_IFNAME]),
		up:    binary.NativeEndian.Uint32(b[8:])&unix.IFF_UP != 0,
		top:   top,
	}
	info, err := attributeMap(top[unix.IFLA_LINKINFO])
	if err != nil {
		return nil, err
	}
	rep.kind = cstring(info[unix.IFLA_INFO_KIND])
	if rep.data, err = attributeMap(info[unix.IFLA_INFO_DATA]); err != nil {
		return nil, err
	}
	rep.slaveData, err = attributeMap(info[unix.IFLA_INFO_SLAVE_DATA])
	return rep, err
}

func cstring(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// attributeMap splits a nest. Of an attribute that is there twice, the last
// counts.
func attributeMap(b []byte) (map[uint16][]byte, error) {
	all, err := unpack(b)
	if err != nil {
		return nil, fmt.Errorf("decode netlink attributes: %w", err)
	}
	out := make(map[uint16][]byte, len(all))
	for _, a := range all {
		out[a.Type&^(netlink.Nested|netlink.NetByteOrder)] = a.Data
	}
	return out, nil
}

// number is the value of a 32-bit attribute, 0 where there is none.
func (rep *linkInfo) number(attr uint16) int {
	n, err := getUint(rep.top[attr], 4, false)
	if err != nil {
		return 0
	}
	return int(n)
}

// attrs are the shared parameters.
func (rep *linkInfo) attrs() Attrs {
	a := Attrs{Name: rep.name, MTU: rep.number(unix.IFLA_MTU), TxQueueLen: rep.number(unix.IFLA_TXQLEN)}
	if b := rep.top[unix.IFLA_ADDRESS]; len(b) == len(a.MAC) {
		a.MAC = MAC(b)
	}
	return a
}

// index and name make rtnl a names.
func (r *rtnl) index(name string) (int, error) {
	rep, err := r.find(name)
	if err != nil {
		return 0, fmt.Errorf("find link %q in %s: %w", name, r.ns, err)
	}
	return rep.index, nil
}

func (r *rtnl) name(index int) (string, error) {
	rep, err := r.byIndex(index)
	if err != nil {
		return "", fmt.Errorf("find link %d in %s: %w", index, r.ns, err)
	}
	return rep.name, nil
}
