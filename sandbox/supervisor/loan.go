package supervisor

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// loan is a listener that a program has from us.
type loan struct {
	Loan
	account *account
	inside  netip.AddrPort // where the program's own was bound
	inner   int            // that one, which keeps others from its port; -1: closed
}

// loans are those of all programs: another one than that which has called listen may have
// the listener by now. They are safe for concurrent use. No call about a program's socket
// is made with mu held.
type loans struct {
	began chan struct{} // has one after add
	mu    sync.Mutex
	all   []loan
}

func (l *loans) add(one loan) {
	l.mu.Lock()
	l.all = append(l.all, one)
	l.mu.Unlock()
	select {
	case l.began <- struct{}{}:
	default:
	}
}

func (l *loans) none() bool { return l.number() == 0 }

// maxLoans bounds the listeners: any number of them may share a port (SO_REUSEPORT).
const maxLoans = 1024

func (l *loans) full() bool { return l.number() >= maxLoans }

func (l *loans) number() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// collect ends loans whose socket nobody has any more, and reports whether there
// were any.
func (l *loans) collect() bool {
	l.mu.Lock()
	var gone []loan
	keep := l.all[:0]
	for _, one := range l.all {
		lives := one.inner >= 0 && one.Lives()
		if !lives && one.inner >= 0 {
			gone = append(gone, one)
			one.inner = -1
		}
		if lives || !one.End() {
			keep = append(keep, one)
		}
	}
	clear(l.all[len(keep):])
	l.all = keep
	l.mu.Unlock()
	for _, one := range gone {
		unix.Close(one.inner)
		one.account.release(1)
	}
	return len(gone) > 0
}

// abandon closes what is held for loans. Who has the listeners keeps them.
func (l *loans) abandon() {
	l.mu.Lock()
	all := l.all
	l.all = nil
	l.mu.Unlock()
	for _, one := range all {
		if one.inner >= 0 {
			unix.Close(one.inner)
			one.account.release(1)
		}
	}
}

// lent returns where the host's listener is that a program has for one of its own at an
// address inside.
func (l *loans) lent(to netip.AddrPort, r *routes) (netip.AddrPort, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.all {
		if one.inner < 0 || one.inside.Port() != to.Port() || !one.reaches(to.Addr(), r) || !one.Lives() {
			continue
		}
		at := one.At
		if at.Addr().IsUnspecified() {
			local := netip.IPv6Loopback()
			if to.Addr().Is4() {
				local = netip.AddrFrom4([4]byte{127, 0, 0, 1})
			}
			at = netip.AddrPortFrom(local, at.Port())
		}
		return at, true
	}
	return to, false
}

// reaches reports whether an address inside leads to the program's listener.
func (l *loan) reaches(a netip.Addr, r *routes) bool {
	own := l.inside.Addr()
	if !own.IsUnspecified() {
		return own == a
	}
	return (own.Is6() || a.Is4()) && !r.outside(a)
}
