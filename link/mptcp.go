package link

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"cleat/netns"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MPTCPEndpoint is an address that the kernel's path manager uses for additional
// subflows (ip-mptcp(8), net/mptcp/pm_netlink.c, CONFIG_MPTCP). It is comparable
// data.
type MPTCPEndpoint struct {
	Addr     netip.Addr `json:"address"`
	ID       int        `json:"id"`                 // 1…255; 0: chosen by the kernel
	Port     int        `json:"port,omitempty"`     // to listen on, with Signal only; 0: the connection's port
	Device   string     `json:"device,omitempty"`   // the link that has Addr; "": any link, or a link that no longer exists
	Signal   bool       `json:"signal,omitempty"`   // announce it to the peer
	Subflow  bool       `json:"subflow,omitempty"`  // open subflows from it
	Backup   bool       `json:"backup,omitempty"`   // use its subflows only if all others fail
	FullMesh bool       `json:"fullmesh,omitempty"` // with Subflow: open one to each address of the peer; not with Signal
}

// MPTCPLimits limit what the path manager does for one connection. The kernel
// limits them in turn (MPTCPCapacity).
type MPTCPLimits struct {
	Subflows         int `json:"subflows"`          // beyond the first; the kernel's default is 2 (0 before 5.13)
	AcceptedAddAddrs int `json:"add_addr_accepted"` // announced addresses of the peer that are used; the kernel's default is 0
}

// Commands, attributes and flags of the path manager
// (include/uapi/linux/mptcp_pm.h).
const (
	mptcpAddAddr   = 1 // MPTCP_PM_CMD_ADD_ADDR
	mptcpDelAddr   = 2
	mptcpGetAddr   = 3
	mptcpSetLimits = 5
	mptcpGetLimits = 6

	mptcpAttrAddr       = 1 // MPTCP_PM_ATTR_ADDR
	mptcpAttrRcvAddAddr = 2
	mptcpAttrSubflows   = 3

	mptcpAddrFamily = 1 // MPTCP_PM_ADDR_ATTR_FAMILY
	mptcpAddrID     = 2
	mptcpAddrAddr4  = 3
	mptcpAddrAddr6  = 4
	mptcpAddrPort   = 5
	mptcpAddrFlags  = 6
	mptcpAddrIfIdx  = 7

	mptcpFlagSignal   = 1 << 0 // MPTCP_PM_ADDR_FLAG_SIGNAL
	mptcpFlagSubflow  = 1 << 1
	mptcpFlagBackup   = 1 << 2
	mptcpFlagFullMesh = 1 << 3
)

// fields returns the table of an endpoint's attributes. The device comes last:
// decode ignores its error.
func (e *MPTCPEndpoint) fields() []field {
	return []field{
		{"address", mptcpAddrAddr4, ip4(&e.Addr)},
		{"", mptcpAddrAddr6, ip6(&e.Addr)},
		{"id", mptcpAddrID, u8(&e.ID)},
		{"port", mptcpAddrPort, u16(&e.Port)},
		{"", mptcpAddrFlags, bits{size: 4, flags: map[uint32]*bool{mptcpFlagSignal: &e.Signal, mptcpFlagSubflow: &e.Subflow,
			mptcpFlagBackup: &e.Backup, mptcpFlagFullMesh: &e.FullMesh}}},
		{name: "fullmesh", val: bool8(&e.FullMesh)},
		{"device", mptcpAddrIfIdx, device{p: &e.Device}},
	}
}

// AddMPTCPEndpoint adds an endpoint to ns. An endpoint with the same address or
// ID is ErrExists; a kernel without MPTCP is a *Lack.
func AddMPTCPEndpoint(ns *netns.NS, e MPTCPEndpoint) error {
	err := validate("mptcp endpoint", e.fields(),
		rule{!e.Addr.IsValid() || e.Addr.IsUnspecified() || e.Addr.IsMulticast(), "address", "a unicast IP address"},
		rule{e.Port != 0 && !e.Signal, "port", "0 without signal"},
		rule{e.FullMesh && (e.Signal || !e.Subflow), "fullmesh", "true together with subflow and without signal only"},
	)
	if err != nil {
		return err
	}
	return withMPTCP(ns, fmt.Sprintf("add mptcp endpoint %s in", e.Addr), func(m *mptcpConn) error {
		addr, err := m.encode(e)
		if err != nil {
			return err
		}
		if _, err = m.execute(mptcpAddAddr, netlink.Acknowledge, addr); err != nil && m.inUse(e) {
			return ErrExists
		}
		return err
	})
}

// inUse reports whether the address or the ID is in use. The kernel's error does
// not tell: by version it is EEXIST, EBUSY or EINVAL.
func (m *mptcpConn) inUse(e MPTCPEndpoint) bool {
	all, err := m.list()
	return err == nil && slices.ContainsFunc(all, func(o MPTCPEndpoint) bool {
		return o.ID == e.ID || o.Addr == e.Addr && o.Port == e.Port
	})
}

// DeleteMPTCPEndpoint removes the endpoint with this ID, and its subflows.
func DeleteMPTCPEndpoint(ns *netns.NS, id int) error {
	return withMPTCP(ns, fmt.Sprintf("remove mptcp endpoint %d from", id), func(m *mptcpConn) error {
		addr, err := nest(mptcpAttrAddr, []attribute{{Type: mptcpAddrID, Data: []byte{byte(id)}}})
		if err == nil {
			_, err = m.execute(mptcpDelAddr, netlink.Acknowledge, addr)
		}
		return err
	})
}

// MPTCPEndpoints lists the endpoints of ns, by ID.
func MPTCPEndpoints(ns *netns.NS) ([]MPTCPEndpoint, error) {
	var all []MPTCPEndpoint
	err := withMPTCP(ns, "list mptcp endpoints of", func(m *mptcpConn) (err error) {
		all, err = m.list()
		return err
	})
	return all, err
}

func (m *mptcpConn) list() ([]MPTCPEndpoint, error) {
	answers, err := m.execute(mptcpGetAddr, netlink.Dump)
	if err != nil {
		return nil, err
	}
	var out []MPTCPEndpoint
	for _, a := range answers {
		e, err := m.decode(a.Data)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b MPTCPEndpoint) int { return a.ID - b.ID })
	return out, nil
}

// SetMPTCPLimits sets both limits of ns. A limit that exceeds the kernel's
// capacity is a *ParamError.
func SetMPTCPLimits(ns *netns.NS, l MPTCPLimits) error {
	if err := validate("mptcp limits", l.fields()); err != nil {
		return err
	}
	return withMPTCP(ns, "set mptcp limits of", func(m *mptcpConn) error { return m.setLimits(l) })
}

func (l *MPTCPLimits) fields() []field {
	return []field{
		{"subflows", mptcpAttrSubflows, u32(&l.Subflows).required()},
		{"add_addr_accepted", mptcpAttrRcvAddAddr, u32(&l.AcceptedAddAddrs).required()},
	}
}

// setLimits sets both limits. If the kernel refuses one, the error is a
// *ParamError that names it.
func (m *mptcpConn) setLimits(l MPTCPLimits) error {
	fields := l.fields()
	attrs, err := encodeFields("mptcp limits", fields, m.links)
	if err != nil {
		return err
	}
	_, err = m.execute(mptcpSetLimits, netlink.Acknowledge, attrs...)
	var op *netlink.OpError
	if !errors.As(err, &op) || op.Message == "" {
		return err
	}
	// Older kernels (6.12) do not point at a limit. Both have the same maximum, so
	// it is the higher one.
	refused := fields[0]
	if l.AcceptedAddAddrs > l.Subflows {
		refused = fields[1]
	}
	if op.Offset > 0 {
		at := attributeAt(attrs, op.Offset-unix.SizeofNlMsghdr-unix.GENL_HDRLEN)
		i := slices.IndexFunc(fields, func(f field) bool { return slices.Equal(at, []uint16{f.attr}) })
		if i < 0 {
			return kernelError(err)
		}
		refused = fields[i]
	} else if !errors.Is(err, unix.EINVAL) {
		return kernelError(err)
	}
	return paramError("mptcp limits", refused.name, refused.val.text(), "the kernel says: "+op.Message)
}

// ReadMPTCPLimits reads both limits of ns.
func ReadMPTCPLimits(ns *netns.NS) (MPTCPLimits, error) {
	var l MPTCPLimits
	err := withMPTCP(ns, "read mptcp limits of", func(m *mptcpConn) error {
		answers, err := m.execute(mptcpGetLimits, 0)
		if err != nil {
			return err
		}
		if len(answers) == 0 {
			return errors.New("the kernel did not answer")
		}
		got, err := attributeMap(answers[0].Data)
		if err != nil {
			return err
		}
		return decodeFields(l.fields(), got, m.links)
	})
	return l, err
}

// mptcpConn is a socket to the path manager of one namespace.
type mptcpConn struct {
	*genl
	links *rtnl
}

// withMPTCP calls f with a socket to the path manager of ns. An error begins with
// action and the namespace.
func withMPTCP(ns *netns.NS, action string, f func(*mptcpConn) error) error {
	g, err := dialGenl(ns, "mptcp_pm")
	if errors.Is(err, fs.ErrNotExist) {
		return newLack("mptcp", err)
	}
	if err != nil {
		return err
	}
	defer g.Close()
	links, err := dial(ns)
	if err != nil {
		return err
	}
	defer links.Close()
	if err := f(&mptcpConn{g, links}); err != nil {
		return fmt.Errorf("%s %s: %w", action, ns, kernelError(err))
	}
	return nil
}

func (m *mptcpConn) encode(e MPTCPEndpoint) (attribute, error) {
	inner, err := encodeFields("mptcp endpoint", e.fields(), m.links)
	if err != nil {
		return attribute{}, err
	}
	return nest(mptcpAttrAddr, append(inner, attribute{Type: mptcpAddrFamily, Data: putUint(uint32(family(e.Addr)), 2, false)}))
}

// decode leaves Device empty if the link no longer exists.
func (m *mptcpConn) decode(b []byte) (MPTCPEndpoint, error) {
	var e MPTCPEndpoint
	top, err := attributeMap(b)
	if err != nil {
		return e, err
	}
	got, err := attributeMap(top[mptcpAttrAddr])
	if err != nil {
		return e, err
	}
	if err = decodeFields(e.fields(), got, m.links); errors.Is(err, unix.ENODEV) {
		err = nil
	}
	return e, err
}
