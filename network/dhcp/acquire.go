package dhcp

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"time"

	"cleat/network/announce"
	"cleat/network/segment"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// ErrNotApplicable means that a link of this kind has no DHCP.
var ErrNotApplicable = errors.New("no DHCP on this kind of link")

// Config says what to ask servers for. The zero Config asks for any address.
type Config struct {
	Client    Client
	Requested netip.Addr    // preferred address, e.g. that of an earlier lease; servers may ignore it
	Timeout   time.Duration // for the servers, without the check for duplicates; 0: 10 s
	// Save, if set, is called before a server is asked for an address, with the lease that the
	// server may then count as granted, and at last with the lease itself; nil means none. If
	// Save stores the lease outside of the process, Release can release it even if Acquire
	// fails or never returns. A lease that is not confirmed has only Client, Address, Server
	// and NextHop. An error of Save ends Acquire.
	Save func(*Lease) error
}

// acquireTimeout is enough for a server that probes for 3 s before it offers an address, and
// one lost message.
const acquireTimeout = 10 * time.Second

// Acquire gets a lease for a link, which must be up but needs no address. An address that a
// neighbour uses (announce.Fast) is declined, and another one requested. Acquire does not configure
// the link. It returns when it has a lease, after c.Timeout, or when ctx ends. If no lease was
// granted, the error is an *Error that says what servers answered. Other errors wrap
// segment.ErrDown, ErrNotApplicable, ErrClient, announce.ErrParentUnknown or the error of ctx,
// or are those of c.Save. After an error a server may count the lease as granted with which
// c.Save was last called.
func Acquire(ctx context.Context, at segment.Link, c Config) (*Lease, error) {
	r := driver{operation: "acquire lease"}
	info, err := r.waitReady(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := c.Client.Validate(); err != nil {
		return nil, r.wrap(err)
	}
	if c.Timeout <= 0 {
		c.Timeout = acquireTimeout
	}
	raw, err := openRaw(at)
	if err != nil {
		return nil, r.wrap(err)
	}
	defer raw.close()
	began, err := Now()
	if err != nil {
		return nil, err
	}
	x := newExchange(requester{client: c.Client, mac: info.MAC, broadcast: info.IPvlan()}, c.Requested, rand.Float64, newXID)
	var saved *Lease
	save := func(l *Lease) error {
		if c.Save == nil || reflect.DeepEqual(l, saved) {
			return nil
		}
		saved = l
		return c.Save(l)
	}
	r.wire, r.sm, r.beforeSend = raw, x, func() error { return save(x.unconfirmedLease()) }
	r.start = time.Now() // not before began: a lease obtained in the future counts as expired
	askCtx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	for {
		if err := r.drive(askCtx); err != nil {
			return nil, err
		}
		checked, err := announce.Check(ctx, at, x.terms.Address.Addr(), announce.Fast())
		if err != nil {
			return nil, r.wrap(err)
		}
		conflict := checked.Conflict
		if conflict == nil {
			l := x.lease(began)
			return l, save(l)
		}
		if err := raw.send(x.declineInUse(r.now(), conflict.MAC).ToBytes()); err != nil {
			return nil, r.wrap(fmt.Errorf("decline %s: %w", conflict.Addr, err))
		}
	}
}

// newXID returns a transaction id that others can't guess (RFC 2131 section 4.1).
func newXID() (xid dhcpv4.TransactionID) {
	crand.Read(xid[:]) // never fails (package crypto/rand)
	return xid
}
