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

// rtnl is a route netlink socket in one namespace. It works with raw attributes,
// because links have more of them than the types of the netlink library. It asks
// for extended acknowledgements, in which the kernel names its objections.
type rtnl struct {
	conn    *netlink.Conn
	ns      *netns.NS
	parents map[int]string // names of links that were looked up, by index
}

func dial(ns *netns.NS) (*rtnl, error) {
	c, err := openIn(ns, "route netlink", func() (*netlink.Conn, error) { return netlink.Dial(unix.NETLINK_ROUTE, nil) })
	if err != nil {
		return nil, err
	}
	// Kernels before 4.12 have no extended acknowledgements. Errors are terse
	// there.
	_ = c.SetOption(netlink.ExtendedAcknowledge, true)
	return &rtnl{conn: c, ns: ns, parents: map[int]string{}}, nil
}

// openIn opens a socket in ns. what names the socket in errors.
func openIn[T any](ns *netns.NS, what string, open func() (T, error)) (T, error) {
	var socket T
	err := ns.Do(func() (err error) {
		socket, err = open()
		return err
	})
	if err != nil {
		return socket, fmt.Errorf("open %s in %s: %w", what, ns, err)
	}
	return socket, nil
}

func (r *rtnl) Close() error { return r.conn.Close() }

// sockets are the sockets that one operation has open, one per namespace.
type sockets struct{ open []*rtnl }

// dial returns the socket in ns. It opens the socket on first use and leaves it
// open until close.
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

// pack and unpack convert attributes to and from the payload of a nest.
func pack(all []attribute) ([]byte, error) { return netlink.MarshalAttributes(all) }

func unpack(b []byte) ([]attribute, error) { return netlink.UnmarshalAttributes(b) }

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

// attributes returns the parameters as attributes of a link message.
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

// request describes a new link in the kernel's terms.
type request struct {
	kind   string
	attrs  Attrs
	parent string      // becomes IFLA_LINK, looked up in the namespace of the socket
	top    []attribute // further attributes of the link itself
	fields []field     // IFLA_INFO_DATA
	data   []attribute // further attributes in IFLA_INFO_DATA
}

// newLink creates a link directly in the namespace to.
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

// parent looks up the parent of a new link. Drivers reject an MTU larger than the
// parent's without giving the reason, so parent checks the MTU.
func (r *rtnl) parent(q request) (*linkInfo, error) {
	p, err := r.find(q.parent)
	if errors.Is(err, unix.ENODEV) {
		return nil, paramError(q.kind, "parent", q.parent, "a link that exists in "+r.ns.String())
	}
	if err != nil {
		return nil, fmt.Errorf("find link %q in %s: %w", q.parent, r.ns, err)
	}
	if limit := p.attrs().MTU; q.attrs.MTU > limit {
		return nil, paramError(q.kind, "mtu", q.attrs.MTU, fmt.Sprintf("at most the parent's, %d bytes", limit))
	}
	r.parents[p.index] = p.name
	return p, nil
}

// asParamError converts a refusal that points at an attribute of the request into
// a *ParamError for its parameter. attrs is what was sent.
func asParamError(q request, attrs []attribute, err error) error {
	var op *netlink.OpError
	if !errors.As(err, &op) || op.Message == "" {
		return err
	}
	path := attributeAt(attrs, op.Offset-unix.SizeofNlMsghdr-unix.SizeofIfInfomsg)
	refused := func(param string, v value, allowed string) error {
		return paramError(q.kind, param, v.text(), allowed+"the kernel says: "+op.Message)
	}
	switch {
	case slices.Equal(path, []uint16{unix.IFLA_MTU}):
		return refused("mtu", u32(&q.attrs.MTU), "")
	case slices.Equal(path, []uint16{unix.IFLA_ADDRESS}):
		return refused("mac", hardware{p: &q.attrs.MAC}, "")
	}
	for _, f := range q.fields {
		if f.name != "" && f.attr != 0 && slices.Equal(path, []uint16{unix.IFLA_LINKINFO, unix.IFLA_INFO_DATA, f.attr}) {
			return refused(f.name, f.val, f.val.allowed()+"; ")
		}
	}
	return kernelError(err)
}

// kernelError returns err as a *KernelError if the kernel sent an explanation.
func kernelError(err error) error {
	var op *netlink.OpError
	if !errors.As(err, &op) || op.Message == "" {
		return err
	}
	return &KernelError{Message: op.Message, Errno: op.Err}
}

// attributeAt returns the types on the path to the attribute that starts at offset.
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

// moveAndRename moves a link into another namespace under its final name.
func (r *rtnl) moveAndRename(index int, to *netns.NS, name string) error {
	_, err := r.execute(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(unix.AF_UNSPEC, index),
		[]attribute{uint32Attr(unix.IFLA_NET_NS_FD, to.Fd()), stringAttr(unix.IFLA_IFNAME, name)})
	return err
}

// linkInfo is the kernel's description of a link.
type linkInfo struct {
	index int
	name  string
	kind  string
	up    bool // IFF_UP
	top   map[uint16][]byte
	data  map[uint16][]byte // IFLA_INFO_DATA
}

func (r *rtnl) find(name string) (*linkInfo, error) {
	return r.get(ifinfo(unix.AF_UNSPEC, 0), []attribute{stringAttr(unix.IFLA_IFNAME, name)})
}

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
			return parseLinkInfo(m.Data)
		}
	}
	return nil, unix.ENODEV
}

func parseLinkInfo(b []byte) (*linkInfo, error) {
	top, err := attributeMap(b[unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, err
	}
	kind, err := attributeMap(top[unix.IFLA_LINKINFO])
	if err != nil {
		return nil, err
	}
	info := &linkInfo{
		index: int(binary.NativeEndian.Uint32(b[4:])),
		name:  cstring(top[unix.IFLA_IFNAME]),
		kind:  cstring(kind[unix.IFLA_INFO_KIND]),
		up:    binary.NativeEndian.Uint32(b[8:])&unix.IFF_UP != 0,
		top:   top,
	}
	info.data, err = attributeMap(kind[unix.IFLA_INFO_DATA])
	return info, err
}

func cstring(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// attributeMap returns the attributes of a nest by type. If a type is present
// twice, the last one wins.
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

// number returns the value of a 32-bit attribute, or 0 if the attribute is missing.
func (info *linkInfo) number(attr uint16) int {
	n, _ := getUint(info.top[attr], 4, false)
	return int(n)
}

func (info *linkInfo) attrs() Attrs {
	a := Attrs{Name: info.name, MTU: info.number(unix.IFLA_MTU), TxQueueLen: info.number(unix.IFLA_TXQLEN)}
	if b := info.top[unix.IFLA_ADDRESS]; len(b) == len(a.MAC) {
		a.MAC = MAC(b)
	}
	return a
}

// index and name implement linkNames.
func (r *rtnl) index(name string) (int, error) {
	info, err := r.find(name)
	if err != nil {
		return 0, fmt.Errorf("find link %q in %s: %w", name, r.ns, err)
	}
	return info.index, nil
}

func (r *rtnl) name(index int) (string, error) {
	info, err := r.byIndex(index)
	if err != nil {
		return "", fmt.Errorf("find link %d in %s: %w", index, r.ns, err)
	}
	return info.name, nil
}
