package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// routes tells which destinations lie beyond the device. What it has learned holds
// until something changes.
type routes struct {
	fd, news int
	index    uint32
	known    map[netip.Addr]bool
}

// maxRoutes bounds what is remembered.
const maxRoutes = 4096

// groups are the news that change routes (include/uapi/linux/rtnetlink.h).
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
}

var native = binary.NativeEndian

// Sizes of include/uapi/linux/rtnetlink.h.
const (
	rtMsgBytes  = 12
	ifInfoBytes = 16
)

func newRoutes(fd, news int, device string) (*routes, error) {
	r := &routes{fd: fd, news: news, known: map[netip.Addr]bool{}}
	for _, g := range groups {
		if err := unix.SetsockoptInt(news, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return r, fmt.Errorf("ask for news about routes inside: %w", err)
		}
	}
	body := make([]byte, ifInfoBytes)
	body = appendAttribute(body, unix.IFLA_IFNAME, append([]byte(device), 0))
	answer, err := r.ask(unix.RTM_GETLINK, body)
	if err != nil {
		return r, fmt.Errorf("find device %q inside: %w", device, err)
	}
	if len(answer) < ifInfoBytes {
		return r, fmt.Errorf("find device %q inside: a short answer", device)
	}
	r.index = native.Uint32(answer[4:])
	return r, nil
}

// changed forgets what was learned. What else there is to read is not of interest.
func (r *routes) changed() {
	clear(r.known)
	var buf [8 << 10]byte
	for {
		if n, errno := sys.RecvNow(r.news, buf[:], 0); errno == unix.EAGAIN || errno == 0 && n == 0 {
			return
		} else if errno != 0 && errno != unix.ENOBUFS && errno != unix.EINTR {
			return
		}
	}
}

// outside tells whether packets to an address leave by the device.
func (r *routes) outside(a netip.Addr) bool {
	is, ok := r.known[a]
	if !ok {
		if len(r.known) >= maxRoutes {
			clear(r.known)
		}
		is = r.look(a)
		r.known[a] = is
	}
	return is
}

func (r *routes) look(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
		return false
	}
	body := make([]byte, rtMsgBytes, 64)
	body[0], body[1] = unix.AF_INET, 32
	if a.Is6() {
		body[0], body[1] = unix.AF_INET6, 128
	}
	body = appendAttribute(body, unix.RTA_DST, a.AsSlice())
	answer, err := r.ask(unix.RTM_GETROUTE, body)
	if err != nil || len(answer) < rtMsgBytes || answer[7] != unix.RTN_UNICAST {
		return false
	}
	for attrs := answer[rtMsgBytes:]; len(attrs) >= 4; {
		size := int(native.Uint16(attrs))
		if size < 4 || size > len(attrs) {
			return false
		}
		if native.Uint16(attrs[2:]) == unix.RTA_OIF && size >= 8 {
			return native.Uint32(attrs[4:]) == r.index
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
	}
	return false
}

func appendAttribute(b []byte, kind uint16, data []byte) []byte {
	b = native.AppendUint16(b, uint16(4+len(data)))
	b = native.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// ask sends a request and returns the body of the one message that answers it.
func (r *routes) ask(kind uint16, body []byte) ([]byte, error) {
	msg := make([]byte, unix.SizeofNlMsghdr, 128)
	native.PutUint32(msg[0:], uint32(unix.SizeofNlMsghdr+len(body)))
	native.PutUint16(msg[4:], kind)
	native.PutUint16(msg[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(r.fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	buf := make([]byte, 16<<10)
	n, _, err := unix.Recvfrom(r.fd, buf, unix.MSG_DONTWAIT) // the kernel has answered by now
	if err != nil {
		return nil, err
	}
	if n < unix.SizeofNlMsghdr {
		return nil, errors.New("a short answer")
	}
	if native.Uint16(buf[4:]) == unix.NLMSG_ERROR && n >= unix.SizeofNlMsghdr+4 {
		return nil, unix.Errno(-int32(native.Uint32(buf[unix.SizeofNlMsghdr:])))
	}
	return buf[unix.SizeofNlMsghdr:n], nil
}
