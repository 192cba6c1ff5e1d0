package spanned

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cleat/link"

	"github.com/vishvananda/netlink"
)

// ErrNotApplicable means that the network's design rules an event out.
var ErrNotApplicable = errors.New("not applicable")

// measures has a function for each event.
var measures = map[string]func(*Bed, context.Context) (time.Duration, error){
	Join: (*Bed).join, Endpoint: (*Bed).endpoint, Name: (*Bed).name, Death: (*Bed).death, Healing: (*Bed).healing,
	Move: (*Bed).move, Address: (*Bed).address,
}

// Measure makes an event happen, and returns how long it took. The bed is as before afterwards, but after Address the
// host keeps its new address.
func (b *Bed) Measure(ctx context.Context, event string) (time.Duration, error) {
	f := measures[event]
	if f == nil {
		return 0, fmt.Errorf("unknown event %q", event)
	}
	return f(b, ctx)
}

// join measures the event Join, and removes the host again.
func (b *Bed) join(ctx context.Context) (took time.Duration, err error) {
	before := len(b.hosts)
	h, err := b.addHost(ctx)
	if err == nil {
		began := time.Now()
		if err = b.admit(ctx, h); err == nil {
			err = b.joined(ctx, h)
		}
		took = time.Since(began)
	}
	if len(b.hosts) > before {
		err = errors.Join(err, b.remove(ctx, b.hosts[before]))
	}
	return took, err
}

// remove takes a host out of the cluster.
func (b *Bed) remove(ctx context.Context, h *Host) error {
	errs := []error{h.close(), b.driver.leave(ctx, h), h.Node.Close()}
	b.hosts = b.others(h)
	delete(b.asking, h)
	delete(b.ports, h)
	return errors.Join(errs...)
}

// fresh calls measure for a new container, which is not connected yet.
func (b *Bed) fresh(ctx context.Context, h *Host, measure func(*Container) error) (took time.Duration, err error) {
	b.serial++
	c, err := h.answering(ctx, fmt.Sprintf("c%d", b.serial))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err = c.Connect(ctx); err == nil {
		err = measure(c)
		took = time.Since(began)
		_, disconnectErr := c.Disconnect(ctx)
		err = errors.Join(err, disconnectErr)
	}
	return took, errors.Join(err, c.Close())
}

func (b *Bed) endpoint(ctx context.Context) (time.Duration, error) {
	return b.fresh(ctx, b.hosts[1], func(c *Container) error { return b.reachable(ctx, c) })
}

func (b *Bed) name(ctx context.Context) (time.Duration, error) {
	if !b.driver.resolver(b.hosts[1]).IsValid() {
		return 0, fmt.Errorf("%w: it has no names", ErrNotApplicable)
	}
	return b.fresh(ctx, b.hosts[1], func(c *Container) error {
		return atOnce(ctx, b.others(c.host), func(h *Host) error { return b.finds(ctx, b.asking[h], c) })
	})
}

// victim is the host on which faults happen: the last one, which has a member of the registry if all have.
func (b *Bed) victim() *Host { return b.hosts[len(b.hosts)-1] }

// setPort cuts a host off, or joins it again.
func (b *Bed) setPort(h *Host, up bool) error {
	l, err := link.Find(b.sw.NS, b.ports[h])
	if err != nil {
		return err
	}
	if up {
		return l.Up()
	}
	return l.Down()
}

// noticed waits until all others say that a host is gone, or do not.
func (b *Bed) noticed(ctx context.Context, gone *Host, is bool) error {
	return atOnce(ctx, b.others(gone), func(h *Host) error {
		got, err := b.driver.misses(ctx, h, gone)
		if err == nil && got != is {
			err = fmt.Errorf("host %s says that host %s is gone: %t", h.Name, gone.Name, got)
		}
		return err
	})
}

func (b *Bed) death(ctx context.Context) (time.Duration, error) {
	h := b.victim()
	if _, err := b.driver.misses(ctx, b.hosts[0], h); err != nil {
		return 0, err
	}
	if err := b.noticed(ctx, h, false); err != nil { // what happened to it before may not be over
		return 0, err
	}
	if err := b.setPort(h, false); err != nil {
		return 0, err
	}
	began := time.Now()
	err := b.noticed(ctx, h, true)
	took := time.Since(began)
	return took, errors.Join(err, b.setPort(h, true), b.noticed(ctx, h, false), b.joined(ctx, h), b.connects(ctx, h))
}

// connects waits until containers of a host can be connected. A host that was cut off may reach others before that.
func (b *Bed) connects(ctx context.Context, h *Host) error {
	return await(ctx, func() error {
		_, err := b.fresh(ctx, h, func(*Container) error { return nil })
		return err
	})
}

// cutFor is how long a host is cut off before it heals. All programs that notice it have by then.
const cutFor = 6 * time.Second

func (b *Bed) healing(ctx context.Context) (took time.Duration, err error) {
	h := b.victim()
	if err := b.setPort(h, false); err != nil {
		return 0, err
	}
	_, err = b.fresh(ctx, b.hosts[1], func(c *Container) error {
		timer := time.NewTimer(cutFor)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		if err := b.setPort(h, true); err != nil {
			return err
		}
		began := time.Now()
		err := errors.Join(b.joined(ctx, h), await(ctx, func() error { return reaches(b.asking[h], c) }))
		took = time.Since(began)
		return err
	})
	return took, errors.Join(err, b.setPort(h, true), b.joined(ctx, h), b.connects(ctx, h))
}

func (b *Bed) move(ctx context.Context) (took time.Duration, err error) {
	if !b.driver.resolver(b.hosts[1]).IsValid() {
		return 0, fmt.Errorf("%w: each host has addresses of its own", ErrNotApplicable)
	}
	from, to := b.hosts[1], b.victim()
	var address netip.Addr
	if _, err := b.fresh(ctx, from, func(c *Container) error { address = c.Addr; return b.reachable(ctx, c) }); err != nil {
		return 0, err
	}
	b.serial++
	c, err := to.answering(ctx, fmt.Sprintf("c%d", b.serial))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err = b.driver.connect(ctx, c, address); err == nil {
		err = b.reachable(ctx, c)
		took = time.Since(began)
		_, disconnectErr := c.Disconnect(ctx)
		err = errors.Join(err, disconnectErr)
	}
	return took, errors.Join(err, c.Close())
}

func (b *Bed) address(ctx context.Context) (time.Duration, error) {
	h := b.victim()
	if b.cfg.Name != "cleat-overlay" {
		return 0, fmt.Errorf("%w: its program keeps the address with which it was started", ErrNotApplicable)
	}
	b.made++
	now := hostAddr(b.made)
	began := time.Now()
	if err := readdress(h, now); err != nil {
		return 0, err
	}
	h.Addr = now
	err := b.joined(ctx, h)
	return time.Since(began), err
}

// readdress gives a host another address.
func readdress(h *Host, now netip.Addr) error {
	k, err := link.Handle(h.Node.NS)
	if err != nil {
		return err
	}
	defer k.Close()
	l, err := k.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find the link of host %s: %w", h.Name, err)
	}
	address := func(a netip.Addr) *netlink.Addr {
		return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(hostBits, a.BitLen())}}
	}
	if err := errors.Join(k.AddrDel(l, address(h.Addr)), k.AddrAdd(l, address(now))); err != nil {
		return fmt.Errorf("change the address of host %s: %w", h.Name, err)
	}
	return nil
}
