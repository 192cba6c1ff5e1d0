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
	"cleat/internal/sys"
	"cleat/policy"
	"cleat/sandbox/supervisor"
	"cleat/usernet"

	"golang.org/x/sys/unix"
)

// portLender lends published ports to the seccomp tier.
type portLender struct {
	n    *Network
	diag *nlsock.Socket
	// lowest is the lowest port that is lent. A sealed process lacks the right to listen
	// again on ports below.
	lowest uint16
}

func (n *Network) newPortLender() (*portLender, error) {
	diag, err := n.openHostDiag()
	if err != nil {
		return nil, err
	}
	p := &portLender{n: n, diag: diag, lowest: 1024}
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the first unprivileged port: %w", err)
	}
	if first, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16); err == nil {
		p.lowest = uint16(first)
	}
	return p, nil
}

// lend is supervisor.Config's Lend.
func (p *portLender) lend(l supervisor.Listener) (loan supervisor.Loan, ok bool) {
	if p.n.rules.HostSockets() == policy.HostSocketsNone {
		return loan, false
	}
	cfg := usernet.LoanConfig{Family: l.Family, V6Only: l.Only6, ReusePort: l.ReusePort, MinPort: p.lowest}
	fd, lent, ok := p.n.res.stack.Lend(l.Inside, cfg)
	if !ok {
		return loan, false
	}
	own, errno := sys.LocalAddress(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if errno != 0 || err != nil {
		unix.Close(fd)
		_ = lent.End()
		return loan, false
	}
	at := netip.AddrPortFrom(own.AddrPort().Addr().WithZone(""), own.AddrPort().Port())
	warned := false
	return supervisor.Loan{
		FD: fd, Addr: at, InUse: func() bool { return listens(p.diag, byte(l.Family), at, cookie) },
		Return: func() bool {
			err := lent.End()
			if err != nil && !warned {
				warned = true
				p.n.cfg.Log.Warn("listen again on a published port", "port", lent.Forward.Listen.Port(), "error", err)
			}
			return err == nil
		},
	}, true
}

// listens reports whether a listening TCP socket still exists. It returns true if the kernel
// does not answer.
func listens(diag *nlsock.Socket, family byte, at netip.AddrPort, cookie uint64) bool {
	b := diagRequest(TCP, family, 1<<stateListen)
	id := b[8:] // struct inet_diag_sockid
	binary.BigEndian.PutUint16(id, at.Port())
	if family == unix.AF_INET6 {
		a := at.Addr().As16()
		copy(id[4:20], a[:])
	} else {
		copy(id[4:8], at.Addr().AsSlice())
	}
	binary.NativeEndian.PutUint64(id[40:], cookie) // two 32-bit halves, the lower one first
	var errno unix.Errno
	if _, _, err := diag.Ask(nlsock.Request{Kind: sockDiagByFamily, Body: b}); !errors.As(err, &errno) {
		return true
	}
	// If several sockets share the port, the kernel may have found another one.
	found := false
	err := dumpDiag(diag, TCP, family, func(data []byte) {
		const offset = 44 // of the cookie in struct inet_diag_msg
		found = found || len(data) >= diagMessageBytes && binary.NativeEndian.Uint64(data[offset:]) == cookie
	})
	return found || err != nil
}
