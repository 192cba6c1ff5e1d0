package supervisor

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// loan is a listening socket of the host that a program uses.
type loan struct {
	Loan
	account *account
	inside  netip.AddrPort // the local address of the program's own socket
	inner   int            // that socket, which reserves its port inside; -1 once it is closed
}

// loans are those of all programs, since a program may pass its listener to another one.
// They are safe for concurrent use. No call about a program's socket, which could block,
// is made with mu held.
type loans struct {
	added chan struct{} // has a value after add
	mu    sync.Mutex
	all   []loan
}

func (l *loans) add(one loan) {
	l.mu.Lock()
	l.all = append(l.all, one)
	l.mu.Unlock()
	select {
	case l.added <- struct{}{}:
	default:
	}
}

// maxLoans bounds the loans: with SO_REUSEPORT any number of listeners can share a port.
const maxLoans = 1024

func (l *loans) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// collect ends the loans whose socket is closed. It reports whether there were any.
func (l *loans) collect() bool {
	l.mu.Lock()
	var closed []loan
	keep := l.all[:0]
	for _, one := range l.all {
		inUse := one.inner >= 0 && one.InUse()
		if !inUse && one.inner >= 0 {
			closed = append(closed, one)
			one.inner = -1
		}
		if inUse || !one.Return() {
			keep = append(keep, one)
		}
	}
	clear(l.all[len(keep):])
	l.all = keep
	l.mu.Unlock()
	closeInner(closed)
	return len(closed) > 0
}

// abandon forgets all loans. Programs keep their listeners.
func (l *loans) abandon() {
	l.mu.Lock()
	all := l.all
	l.all = nil
	l.mu.Unlock()
	closeInner(all)
}

func closeInner(all []loan) {
	for _, one := range all {
		if one.inner >= 0 {
			unix.Close(one.inner)
			one.account.release(1)
		}
	}
}

// hostAddr returns the host's address of the lent listener that serves an address inside.
func (l *loans) hostAddr(to netip.AddrPort, r *routes) (netip.AddrPort, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.all {
		if one.inner < 0 || one.inside.Port() != to.Port() || !one.serves(to.Addr(), r) || !one.InUse() {
			continue
		}
		if !one.Addr.Addr().IsUnspecified() {
			return one.Addr, true
		}
		loopback := netip.IPv6Loopback()
		if to.Addr().Is4() {
			loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		return netip.AddrPortFrom(loopback, one.Addr.Port()), true
	}
	return to, false
}

// serves reports whether the program's own listener would accept connections to an address
// inside.
func (l *loan) serves(a netip.Addr, r *routes) bool {
	own := l.inside.Addr()
	if !own.IsUnspecified() {
		return own == a
	}
	return (own.Is6() || a.Is4()) && !r.outside(a)
}
