package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"cleat/internal/nlsock"
	"cleat/policy"
	"cleat/sandbox/supervisor"
	"cleat/usernet"

	"golang.org/x/sys/unix"
)

// ports lends published ports to the seccomp tier's supervisor.
type ports struct {
	stack  *usernet.Stack
	may    func() bool // the policy still lets the command have sockets of the host's
	diag   *nlsock.Socket
	lowest uint16 // below it a port can't be had back without the rights that a sealed process gives up
	failed func(port uint16, err error)
}

func (n *Network) newPorts() (*ports, error) {
	fd, diag, err := openDiag()
	if err != nil {
		return nil, err
	}
	n.opened.diags = append(n.opened.diags, fd)
	p := &ports{stack: n.opened.stack, may: func() bool { return n.rules.HostSockets() != policy.HostSocketsNone }, diag: diag, lowest: 1024, failed: func(port uint16, err error) {
		n.cfg.Log.Warn("listen again on a published port", "port", port, "error", err)
	}}
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read which ports are for everybody: %w", err)
	}
	if first, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16); err == nil {
		p.lowest = uint16(first)
	}
	return p, nil
}

// Lend implements supervisor.Ports.
func (p *ports) Lend(w supervisor.Listener) (l supervisor.Loan, ok bool) {
	if !p.may() {
		return l, false
	}
	as := usernet.LoanConfig{Family: w.Family, Only6: w.Only6, ReusePort: w.ReusePort, Lowest: p.lowest}
	fd, loan, ok := p.stack.Lend(w.Inside, as)
	if !ok {
		return l, false
	}
	at, err := unix.Getsockname(fd)
	id, idErr := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil || idErr != nil {
		unix.Close(fd)
		_ = loan.End()
		return l, false
	}
	s := diagSocket{family: byte(as.Family), cookie: id}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		s.at = netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *unix.SockaddrInet6:
		s.at = netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
	}
	told := false
	return supervisor.Loan{
		FD: fd, Addr: netip.AddrPortFrom(s.at.Addr().Unmap(), s.at.Port()),
		InUse: func() bool { return s.listens(p.diag) }, Return: func() bool {
			err := loan.End()
			if err != nil && !told {
				told = true
				p.failed(loan.Forward.Listen.Port(), err)
			}
			return err == nil
		},
	}, true
}

// diagSocket names a listening TCP socket for sock_diag.
type diagSocket struct {
	family byte
	at     netip.AddrPort
	cookie uint64
}

// listens asks the kernel whether the socket is still there. It returns true where the
// kernel does not say.
func (s diagSocket) listens(diag *nlsock.Socket) bool {
	b := diagRequest(TCP, s.family, 1<<stateListen)
	id := b[8:] // struct inet_diag_sockid
	binary.BigEndian.PutUint16(id, s.at.Port())
	copy(id[4:20], s.at.Addr().AsSlice())
	native.PutUint64(id[40:], s.cookie) // the lower half first, as in the structure
	var errno unix.Errno
	if _, _, err := diag.Ask(nlsock.Request{Kind: sockDiagByFamily, Body: b}); !errors.As(err, &errno) {
		return true
	}
	// Of several that share a port the kernel may have found another one.
	found := false
	err := dumpDiag(diag, TCP, s.family, func(data []byte) {
		const cookie = 44 // in struct inet_diag_msg
		found = found || len(data) >= diagMessageBytes && native.Uint64(data[cookie:]) == s.cookie
	})
	return found || err != nil
}
