package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"cleat/internal/nlsock"

	"golang.org/x/sys/unix"
)

type listener struct {
	proto    Protocol
	addr     netip.AddrPort
	ipv6Only bool // IPV6_V6ONLY
}

// Sizes and constants of include/uapi/linux/inet_diag.h and sock_diag.h. The messages are
// written and read by hand because netlink libraries open sockets of their own, in the calling
// thread's namespace. These sockets come from the guest's namespace, and package nlsock
// verifies that an answer is the kernel's.
const (
	sockDiagByFamily = 20
	diagRequestBytes = 56 // struct inet_diag_req_v2: family, protocol, …, states at 4, struct inet_diag_sockid at 8
	diagMessageBytes = 72 // struct inet_diag_msg
	diagV6Only       = 11 // INET_DIAG_SKV6ONLY
	stateUnconnected = 7  // TCP_CLOSE, for UDP sockets
	stateListen      = 10 // TCP_LISTEN
)

// listListeners lists the listeners of the namespace in which the sock_diag socket was opened.
func listListeners(diag *nlsock.Socket, proto Protocol) (all []listener, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err := dumpDiag(diag, proto, family, func(data []byte) {
			if l, ok := parseListener(proto, data); ok {
				all = append(all, l)
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: the kernel lacks the family, or a module for the protocol
			return nil, fmt.Errorf("list %s listeners: %w", proto, err)
		}
	}
	return all, nil
}

// dumpDiag calls yield for each message about a listener of a family.
func dumpDiag(diag *nlsock.Socket, proto Protocol, family byte, yield func(data []byte)) error {
	state := uint32(1) << stateListen
	if proto == UDP {
		state = 1 << stateUnconnected
	}
	return diag.Dump(nlsock.Request{Kind: sockDiagByFamily, Body: diagRequest(proto, family, state)}, func(kind uint16, data []byte) {
		if kind == sockDiagByFamily {
			yield(data)
		}
	})
}

// diagRequest returns a struct inet_diag_req_v2 for sockets in a set of states.
func diagRequest(proto Protocol, family byte, states uint32) []byte {
	b := make([]byte, diagRequestBytes)
	b[0], b[1] = family, byte(proto)
	binary.NativeEndian.PutUint32(b[4:], states)
	return b
}

// parseListener parses a struct inet_diag_msg: family, state, …, source port at 4, source
// address at 8.
func parseListener(proto Protocol, data []byte) (listener, bool) {
	if len(data) < diagMessageBytes {
		return listener{}, false
	}
	port := binary.BigEndian.Uint16(data[4:])
	addr := netip.AddrFrom4([4]byte(data[8:12]))
	if data[0] == unix.AF_INET6 {
		addr = netip.AddrFrom16([16]byte(data[8:24]))
	}
	l := listener{proto: proto, addr: netip.AddrPortFrom(addr.Unmap(), port)}
	for kind, value := range nlsock.Attributes(data[diagMessageBytes:]) {
		if kind == diagV6Only && len(value) > 0 {
			l.ipv6Only = value[0] != 0
		}
	}
	return l, true
}

// openHostDiag opens a sock_diag socket for the host's network namespace. Close closes it.
func (n *Network) openHostDiag() (*nlsock.Socket, error) {
	fd, err := fdDiag.socket()
	if err != nil {
		return nil, fmt.Errorf("open sock_diag socket: %w", err)
	}
	n.res.hostDiagFDs = append(n.res.hostDiagFDs, fd)
	diag, err := nlsock.New(fd)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag socket: %w", err)
	}
	return diag, nil
}
