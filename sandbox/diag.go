package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// listening is a socket that waits for others.
type listening struct {
	proto Protocol
	at    netip.AddrPort
	only6 bool // an IPv6 socket that takes no IPv4
}

// Sizes and constants of include/uapi/linux/inet_diag.h and sock_diag.h.
const (
	sockDiagByFamily = 20
	diagRequestBytes = 56 // struct inet_diag_req_v2
	diagMessageBytes = 72 // struct inet_diag_msg
	diagV6Only       = 11 // INET_DIAG_SKV6ONLY
	stateClose       = 7  // TCP_CLOSE; of UDP sockets: not connected
	stateListen      = 10 // TCP_LISTEN
)

// listeners asks the kernel which sockets of a namespace wait for others: that
// in which the sock_diag socket was opened.
func listeners(fd int, proto Protocol) ([]listening, error) {
	var all []listening
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		some, err := dumpListeners(fd, proto, family)
		if errors.Is(err, unix.ENOENT) {
			continue // a kernel without the family, or without a module for the protocol
		}
		if err != nil {
			return nil, fmt.Errorf("list %s listeners: %w", proto, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func dumpListeners(fd int, proto Protocol, family byte) (all []listening, err error) {
	err = dumpDiag(fd, proto, family, func(data []byte) {
		if l, ok := parseListener(proto, data); ok {
			all = append(all, l)
		}
	})
	return all, err
}

// dumpDiag shows each message about a waiting socket of a family.
func dumpDiag(fd int, proto Protocol, family byte, show func(data []byte)) error {
	state := uint32(1) << stateListen
	if proto == UDP {
		state = 1 << stateClose
	}
	b := make([]byte, unix.SizeofNlMsghdr+diagRequestBytes)
	native.PutUint32(b[0:], uint32(len(b)))
	native.PutUint16(b[4:], sockDiagByFamily)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b[16], b[17] = family, byte(proto)
	native.PutUint32(b[20:], state)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 32<<10) // the kernel fills up to 32 KiB at a time (net/netlink/af_netlink.c)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return netlinkError(m.Data)
			}
			show(m.Data)
		}
	}
}

func netlinkError(data []byte) error {
	if len(data) < 4 {
		return errors.New("netlink message is too short")
	}
	return syscall.Errno(-int32(native.Uint32(data)))
}

// parseListener reads struct inet_diag_msg: family, state, …, source port at 4,
// source address at 8.
func parseListener(proto Protocol, data []byte) (listening, bool) {
	if len(data) < diagMessageBytes {
		return listening{}, false
	}
	port := binary.BigEndian.Uint16(data[4:])
	addr := netip.AddrFrom4([4]byte(data[8:12]))
	if data[0] == unix.AF_INET6 {
		addr = netip.AddrFrom16([16]byte(data[8:24]))
	}
	l := listening{proto: proto, at: netip.AddrPortFrom(addr.Unmap(), port)}
	for attrs := data[diagMessageBytes:]; len(attrs) >= unix.SizeofNlAttr; {
		size := int(native.Uint16(attrs))
		if size < unix.SizeofNlAttr || size > len(attrs) {
			break
		}
		if native.Uint16(attrs[2:]) == diagV6Only && size > unix.SizeofNlAttr {
			l.only6 = attrs[4] != 0
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
	}
	return l, true
}

// openDiag is a sock_diag socket for our own network namespace.
func openDiag() (int, error) {
	fd, err := kindDiag.socket()
	if err != nil {
		return -1, fmt.Errorf("open sock_diag socket: %w", err)
	}
	return fd, nil
}
