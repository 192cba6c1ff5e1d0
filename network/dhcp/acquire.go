package dhcp

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"time"

	"cleat/link"
	"cleat/network/announce"
	"cleat/network/segment"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// ErrNotApplicable says that there is no DHCP on a kind of link.
var ErrNotApplicable = errors.New("no DHCP on such a link")

// Config is what to ask for, and how. The zero Config asks for any address.
type Config struct {
	Client Client
	Wish   netip.Addr // the address that would be best, e.g. of an earlier lease; servers need not heed it
	// Broadcast has servers answer to everyone. On ipvlan they always do: the kernel
	// would give what is sent to an address that no device has yet to the parent.
	Broadcast bool
	// Check is how long others are asked whether they use the address; the zero Timing:
	// they are not. Where they do, it is declined, and another asked for.
	Check  announce.Timing
	Within time.Duration // how long servers are asked, without Check; 0: 10 s
	// Keep is told what a server may count as ours from now on, before it is asked for
	// that, and at last the lease: whoever keeps it where it outlives the process can give
	// it back by Release even if Acquire fails or never returns. A lease that is not
	// confirmed has Client, Address, Server and Hop alone; nil is none. An error of it ends
	// Acquire. nil: nobody is told.
	Keep func(*Lease) error
}

const (
	// acquireWithin is long enough for a server that asks around for 3 s first, and one
	// lost message.
	acquireWithin = 10 * time.Second

	// extendWithin is how long one attempt to extend a lease may take: two questions.
	extendWithin = 10 * time.Second
)

// Acquire gets a lease for a link, which must be up and need have no address. It changes
// nothing on the link: the address, routes and MTU are for the caller to set. It returns when
// it has a lease, or when c.Within is over or ctx has ended: then the error is an *Error that
// says what was seen. Other errors wrap segment.ErrDown, ErrNotApplicable, ErrClient,
// announce.ErrDeaf, ctx's when that was cancelled, or are c.Keep's. After an error a server may
// have given what c.Keep was told last.
func Acquire(ctx context.Context, at segment.Link, c Config) (*Lease, error) {
	const doing = "acquire lease"
	f, err := look(ctx, at, doing)
	if err != nil {
		return nil, err
	}
	if err := c.Client.Validate(); err != nil {
		return nil, fmt.Errorf("%s on %s: %w", doing, f.Name, err)
	}
	if c.Within <= 0 {
		c.Within = acquireWithin
	}
	w, err := openRaw(at)
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w", doing, f.Name, err)
	}
	defer w.close()
	began, err := Now()
	if err != nil {
		return nil, err
	}
	a := asker{client: c.Client, mac: f.MAC, broadcast: c.Broadcast || f.IPvlan()}
	x := newExchange(a, c.Wish, rand.Float64, newXID)
	told := teller{keep: c.Keep}
	r := run{doing: doing, link: f.Name, wire: w, machine: x, start: time.Now(), sending: func() error { return told.tell(x.claim()) }}
	talking, cancel := context.WithTimeout(ctx, c.Within)
	defer cancel()
	for {
		if err := r.drive(talking); err != nil {
			return nil, err
		}
		taken, err := inUse(ctx, at, x.terms.address.Addr(), c.Check)
		if err != nil {
			return nil, fmt.Errorf("%s on %s: %w", doing, f.Name, err)
		}
		if taken == nil {
			l := x.lease(began)
			return l, told.tell(l)
		}
		if err := w.send(x.taken(r.now(), taken.MAC).ToBytes()); err != nil {
			return nil, fmt.Errorf("%s on %s: decline %s: %w", doing, f.Name, taken.Addr, err)
		}
	}
}

// teller tells a Config's Keep what is new.
type teller struct {
	keep func(*Lease) error
	last *Lease // that it was told
}

func (t *teller) tell(l *Lease) error {
	if t.keep == nil || reflect.DeepEqual(l, t.last) {
		return nil
	}
	t.last = l
	return t.keep(l)
}

// inUse asks the neighbours, if they are to be asked.
func inUse(ctx context.Context, at segment.Link, addr netip.Addr, t announce.Timing) (*announce.Conflict, error) {
	if t == (announce.Timing{}) {
		return nil, nil
	}
	v, err := announce.Check(ctx, at, addr, t)
	return v.Conflict, err
}

// look is what the link is, if it is one for DHCP.
func look(ctx context.Context, at segment.Link, doing string) (segment.Info, error) {
	f, err := segment.WaitReady(ctx, at)
	switch {
	case err != nil:
		return f, fmt.Errorf("%s: %w", doing, err)
	case f.NoARPReason != "":
		return f, fmt.Errorf("%s on %s: %w: %s", doing, f.Name, ErrNotApplicable, f.NoARPReason)
	case !f.Up:
		return f, fmt.Errorf("%s on %s: %w", doing, f.Name, segment.ErrDown)
	}
	return f, nil
}

// newXID is a number that others can't guess (RFC 2131 section 4.1).
func newXID() (xid dhcpv4.TransactionID) {
	crand.Read(xid[:]) // never fails (package crypto/rand)
	return xid
}

// machine is what is asked and what is made of the answers, without clock and network.
type machine interface {
	tick(now time.Duration) *dhcpv4.DHCPv4
	next() time.Duration
	receive(now time.Duration, from link.MAC, m *dhcpv4.DHCPv4)
	over() bool
	saw() *Seen
}

// run lets a machine talk.
type run struct {
	doing, link string // for messages
	wire        wire
	machine     machine
	start       time.Time
	sending     func() error // is called before each message; may be nil
}

func (r *run) now() time.Duration { return time.Since(r.start) }

// drive talks until the machine is over, or ctx has ended, which is an error.
func (r *run) drive(ctx context.Context) error {
	for !r.machine.over() {
		if m := r.machine.tick(r.now()); m != nil {
			if err := r.send(m); err != nil {
				return fmt.Errorf("%s on %s: %w", r.doing, r.link, err)
			}
		}
		b, from, err := r.wire.receive(ctx, r.start.Add(r.machine.next()))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
		case err != nil && ctx.Err() != nil:
			return r.failed(ctx)
		case err != nil:
			return fmt.Errorf("%s on %s: %w", r.doing, r.link, err)
		default:
			r.take(b, from)
		}
	}
	return nil
}

func (r *run) send(m *dhcpv4.DHCPv4) error {
	if r.sending != nil {
		if err := r.sending(); err != nil {
			return err
		}
	}
	return r.wire.send(m.ToBytes())
}

// take gives the machine what came in.
func (r *run) take(b []byte, from link.MAC) {
	m, err := dhcpv4.FromBytes(b)
	if err != nil {
		r.machine.saw().Broken++
		return
	}
	r.machine.receive(r.now(), from, m)
}

// failed is the error when the time is over, or the caller wants no more.
func (r *run) failed(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%s on %s: %w", r.doing, r.link, ctx.Err())
	}
	return &Error{Doing: r.doing, Link: r.link, Within: r.now(), Seen: *r.machine.saw()}
}
