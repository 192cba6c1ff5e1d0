package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"cleat/internal/sys"
	"cleat/netns"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MPTCPConnection is an MPTCP connection of a program, with its subflows.
type MPTCPConnection struct {
	Local              netip.AddrPort `json:"local"` // address of the first subflow when the connection began
	Remote             netip.AddrPort `json:"remote"`
	State              string         `json:"state"`              // as in RFC 9293, e.g. ESTABLISHED
	Token              uint32         `json:"token"`              // identifies the connection on this host (RFC 8684 section 3.2)
	UserID             int            `json:"uid"`                // owner of the socket
	Fallback           bool           `json:"fallback"`           // plain TCP: the peer or a middlebox does not support MPTCP
	ExtraSubflows      int            `json:"further_subflows"`   // beyond the first
	ExtraSubflowsLimit int            `json:"further_limit"`      // the limit when the connection began
	BytesSent          uint64         `json:"bytes_sent"`         // payload; 0 on kernels before 6.5
	BytesReceived      uint64         `json:"bytes_received"`     // likewise
	Subflows           []MPTCPSubflow `json:"subflows,omitempty"` // empty on older kernels, where only root may see them
}

// MPTCPSubflow is one TCP connection of an MPTCP connection.
type MPTCPSubflow struct {
	Local         netip.AddrPort `json:"local"`
	Remote        netip.AddrPort `json:"remote"`
	Device        string         `json:"device"` // the link that has the local address; "": none has it any longer
	State         string         `json:"state"`
	LocalID       int            `json:"local_id"` // endpoint ID of the local address; 0: the connection's first
	RemoteID      int            `json:"remote_id"`
	Joined        bool           `json:"joined"` // added to a connection that another subflow began
	Backup        bool           `json:"backup"` // used only if all others fail, at the wish of either end
	RTT           time.Duration  `json:"rtt_ns"`
	BytesSent     uint64         `json:"bytes_sent"` // payload, including retransmissions
	BytesReceived uint64         `json:"bytes_received"`
}

// Constants of include/uapi/linux/inet_diag.h, sock_diag.h and mptcp.h.
const (
	diagRequestBytes    = 56 // struct inet_diag_req_v2
	diagMessageBytes    = 72 // struct inet_diag_msg
	diagRequestProtocol = 3  // INET_DIAG_REQ_PROTOCOL, for those above 255

	diagInfo    = 2  // INET_DIAG_INFO
	diagULPInfo = 19 // INET_DIAG_ULP_INFO
	ulpMPTCP    = 3  // INET_ULP_INFO_MPTCP

	subflowTokenLocal = 2 // MPTCP_SUBFLOW_ATTR_TOKEN_LOC
	subflowFlags      = 8
	subflowRemoteID   = 9
	subflowLocalID    = 10

	subflowJoinRemote   = 1 << 2 // MPTCP_SUBFLOW_FLAG_JOIN_REM
	subflowJoinLocal    = 1 << 3
	subflowBackupRemote = 1 << 4
	subflowBackupLocal  = 1 << 5
)

// Offsets in struct tcp_info (include/uapi/linux/tcp.h), in bytes.
const (
	tcpInfoRTT           = 68 // µs
	tcpInfoBytesReceived = 128
	tcpInfoBytesSent     = 200 // Linux 4.19
)

// tcpStates are the states of include/net/tcp_states.h by their numbers.
var tcpStates = []string{
	"", "ESTABLISHED", "SYN-SENT", "SYN-RECEIVED", "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT",
	"CLOSED", "CLOSE-WAIT", "LAST-ACK", "LISTEN", "CLOSING", "SYN-RECEIVED",
}

// liveStates are the bits of all states except CLOSED, LISTEN and TIME-WAIT.
const liveStates = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11

// MPTCPConnections lists the MPTCP connections of ns with their subflows, sorted
// by address. The list is not a consistent snapshot: it may lack a new subflow.
func MPTCPConnections(ns *netns.NS) ([]MPTCPConnection, error) {
	c, err := openIn(ns, "sock_diag", func() (*netlink.Conn, error) { return netlink.Dial(unix.NETLINK_SOCK_DIAG, nil) })
	if err != nil {
		return nil, err
	}
	defer c.Close()
	devices, err := devicesByAddr(ns)
	if err != nil {
		return nil, err
	}
	d := mptcpDiag{conn: c, devices: devices, byToken: map[uint32]int{}}
	for _, protocol := range []uint32{unix.IPPROTO_MPTCP, unix.IPPROTO_TCP} {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			if err := d.dump(protocol, family); err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, fmt.Errorf("list mptcp connections of %s: %w", ns, kernelError(err))
			}
		}
	}
	slices.SortFunc(d.all, func(a, b MPTCPConnection) int {
		return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
	})
	return d.all, nil
}

func devicesByAddr(ns *netns.NS) (map[netip.Addr]string, error) {
	h, err := Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links of %s: %w", ns, err)
	}
	out := map[netip.Addr]string{}
	for _, l := range links {
		addrs, err := h.AddrList(l, unix.AF_UNSPEC)
		if err != nil {
			return nil, fmt.Errorf("list addresses of link %q: %w", l.Attrs().Name, err)
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				out[ip.Unmap()] = l.Attrs().Name
			}
		}
	}
	return out, nil
}

// mptcpDiag is the state of one call of MPTCPConnections.
type mptcpDiag struct {
	conn    *netlink.Conn
	devices map[netip.Addr]string
	all     []MPTCPConnection
	byToken map[uint32]int // index in all, by token
}

// dump adds MPTCP connections, or, for protocol TCP, adds subflows to them.
func (d *mptcpDiag) dump(protocol uint32, family byte) error {
	b := make([]byte, diagRequestBytes)
	b[0], b[1], b[2] = family, byte(unix.IPPROTO_TCP), 1<<(diagInfo-1)
	binary.NativeEndian.PutUint32(b[4:], liveStates)
	if protocol > 255 {
		more, err := pack([]attribute{uint32Attr(diagRequestProtocol, int(protocol))})
		if err != nil {
			return err
		}
		b = append(b, more...)
	}
	answers, err := d.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump},
		Data:   b,
	})
	if err != nil {
		return err
	}
	for _, m := range answers {
		if len(m.Data) < diagMessageBytes {
			continue
		}
		attrs, err := attributeMap(m.Data[diagMessageBytes:])
		if err != nil {
			return err
		}
		if protocol == unix.IPPROTO_MPTCP {
			d.connection(m.Data, attrs)
		} else if err := d.subflow(m.Data, attrs); err != nil {
			return err
		}
	}
	return nil
}

func (d *mptcpDiag) connection(b []byte, attrs map[uint16][]byte) {
	var info sys.MPTCPInfo
	padded := append(slices.Clone(attrs[diagInfo]), make([]byte, binary.Size(info))...)
	if _, err := binary.Decode(padded, binary.NativeEndian, &info); err != nil || len(attrs[diagInfo]) == 0 {
		return
	}
	d.byToken[info.Token] = len(d.all)
	d.all = append(d.all, MPTCPConnection{
		Local: diagAddr(b, 4, 8), Remote: diagAddr(b, 6, 24), State: diagState(b), Token: info.Token,
		UserID:        int(binary.NativeEndian.Uint32(b[64:])),
		Fallback:      info.Flags&sys.MPTCPFallback != 0,
		ExtraSubflows: int(info.Subflows), ExtraSubflowsLimit: int(info.SubflowsMax),
		BytesSent: info.BytesSent, BytesReceived: info.BytesReceived,
	})
}

// subflow adds a TCP connection to the MPTCP connection that it is a subflow of. It
// ignores plain TCP, and subflows of connections that were not listed.
func (d *mptcpDiag) subflow(b []byte, attrs map[uint16][]byte) error {
	ulp, err := attributeMap(attrs[diagULPInfo])
	if err != nil || len(ulp[ulpMPTCP]) == 0 {
		return err
	}
	about, err := attributeMap(ulp[ulpMPTCP])
	if err != nil || len(about[subflowTokenLocal]) != 4 {
		return err
	}
	i, ok := d.byToken[binary.NativeEndian.Uint32(about[subflowTokenLocal])]
	if !ok {
		return nil
	}
	s := MPTCPSubflow{Local: diagAddr(b, 4, 8), Remote: diagAddr(b, 6, 24), State: diagState(b)}
	s.Device = d.devices[s.Local.Addr()]
	number := func(attr uint16, size int) uint32 { // 0 if the attribute is missing
		n, _ := getUint(about[attr], size, false)
		return n
	}
	flags := number(subflowFlags, 4)
	s.Joined = flags&(subflowJoinLocal|subflowJoinRemote) != 0
	s.Backup = flags&(subflowBackupLocal|subflowBackupRemote) != 0
	s.LocalID, s.RemoteID = int(number(subflowLocalID, 1)), int(number(subflowRemoteID, 1))
	if info := attrs[diagInfo]; len(info) >= tcpInfoBytesSent+8 {
		s.RTT = time.Duration(binary.NativeEndian.Uint32(info[tcpInfoRTT:])) * time.Microsecond
		s.BytesReceived = binary.NativeEndian.Uint64(info[tcpInfoBytesReceived:])
		s.BytesSent = binary.NativeEndian.Uint64(info[tcpInfoBytesSent:])
	}
	d.all[i].Subflows = append(d.all[i].Subflows, s)
	return nil
}

// diagAddr returns a port and an address of struct inet_diag_sockid, which is at
// offset 4 of the message.
func diagAddr(b []byte, port, addr int) netip.AddrPort {
	ip := netip.AddrFrom4([4]byte(b[addr : addr+4]))
	if b[0] == unix.AF_INET6 {
		ip = netip.AddrFrom16([16]byte(b[addr : addr+16])).Unmap()
	}
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[port:]))
}

func diagState(b []byte) string {
	if int(b[1]) < len(tcpStates) {
		return tcpStates[b[1]]
	}
	return ""
}
