package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"cleat/internal/nlsock"

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
	diagRequestBytes = 56 // struct inet_diag_req_v2: family, protocol, …, states at 4, struct inet_diag_sockid at 8
	diagMessageBytes = 72 // struct inet_diag_msg
	diagV6Only       = 11 // INET_DIAG_SKV6ONLY
	stateClose       = 7  // TCP_CLOSE; of UDP sockets: not connected
	stateListen      = 10 // TCP_LISTEN
)

// listeners asks the kernel which sockets of a namespace wait for others: that
// in which the sock_diag socket was opened.
func listeners(diag *nlsock.Socket, proto Protocol) ([]listening, error) {
	var all []listening
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		some, err := dumpListeners(diag, proto, family)
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

func dumpListeners(diag *nlsock.Socket, proto Protocol, family byte) (all []listening, err error) {
	err = dumpDiag(diag, proto, family, func(data []byte) {
		if l, ok := parseListener(proto, data); ok {
			all = append(all, l)
		}
	})
	return all, err
}

// dumpDiag calls show for each message about a waiting socket of a family.
func dumpDiag(diag *nlsock.Socket, proto Protocol, family byte, show func(data []byte)) error {
	state := uint32(1) << stateListen
	if proto == UDP {
		state = 1 << stateClose
	}
	return diag.Dump(nlsock.Request{Kind: sockDiagByFamily, Body: diagRequest(proto, family, state)}, func(kind uint16, data []byte) {
		if kind == sockDiagByFamily {
			show(data)
		}
	})
}

// diagRequest is a struct inet_diag_req_v2 for sockets in some states.
func diagRequest(proto Protocol, family byte, states uint32) []byte {
	b := make([]byte, diagRequestBytes)
	b[0], b[1] = family, byte(proto)
	native.PutUint32(b[4:], states)
	return b
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
	for kind, value := range nlsock.Attributes(data[diagMessageBytes:]) {
		if kind == diagV6Only && len(value) > 0 {
			l.only6 = value[0] != 0
		}
	}
	return l, true
}

// openDiag opens a sock_diag socket for our own network namespace. The descriptor is the
// caller's.
func openDiag() (fd int, diag *nlsock.Socket, err error) {
	if fd, err = kindDiag.socket(); err != nil {
		return -1, nil, fmt.Errorf("open sock_diag socket: %w", err)
	}
	if diag, err = nlsock.New(fd); err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("open sock_diag socket: %w", err)
	}
	return fd, diag, nil
}
