package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A name is looked up again when its answer ends, within these bounds: not
	// so often that it loads the host's resolver, and often enough that a denial
	// follows a name that moves.
	minAgain = 10 * time.Second
	maxAgain = 5 * time.Minute
	// After a look-up that failed, the next comes so much later, doubling up to
	// maxRetry.
	minRetry = time.Second
	maxRetry = time.Minute

	lookupsAtOnce = 8
	// Of one name; the oldest go first. A pool that hands out other addresses
	// each time is remembered this far.
	maxOwnAddresses = 1024
)

// A Lookup finds the addresses of a name, of both families, and how long they
// hold. It must give up by itself after some seconds. An error means that the
// name could not be looked up; a name without addresses is none.
type Lookup func(ctx context.Context, name string) (addrs []netip.Addr, ttl time.Duration, err error)

// own are the addresses of the exact names in rules, as we looked them up
// ourselves: nothing that the guest does or leaves undone changes them. Safe for
// concurrent use; names does not lock.
type own struct {
	again     time.Duration             // the longest until a name is looked up again
	published func(map[string]*ownName) // is called with the lock held after each change; nil: nobody is

	mu      sync.Mutex
	entries map[string]*ownName
	changed chan struct{} // holds one signal that there are new names
	byAddr  atomic.Pointer[map[netip.Addr][]string]
}

// ownName is one exact name.
type ownName struct {
	addrs map[netip.Addr]time.Time // until when
	due   time.Time
	retry time.Duration // 0: the last look-up was answered
	err   error         // of the last look-up
}

func newOwn(again time.Duration) *own {
	return &own{again: again, entries: map[string]*ownName{}, changed: make(chan struct{}, 1)}
}

// set says which names there are.
func (o *own) set(names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.entries, func(name string, _ *ownName) bool {
		_, keep := slices.BinarySearch(names, name)
		return !keep
	})
	for _, name := range names {
		if o.entries[name] == nil {
			o.entries[name] = &ownName{addrs: map[netip.Addr]time.Time{}}
		}
	}
	o.publish()
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// publish makes the map that names reads. The caller holds the lock.
func (o *own) publish() {
	byAddr := map[netip.Addr][]string{}
	for _, name := range slices.Sorted(maps.Keys(o.entries)) {
		for a := range o.entries[name].addrs {
			byAddr[a] = append(byAddr[a], name)
		}
	}
	o.byAddr.Store(&byAddr)
	if o.published != nil {
		o.published(o.entries)
	}
}

// names appends the names of an address to have, except those it has already.
func (o *own) names(have []string, a netip.Addr) []string {
	for _, name := range (*o.byAddr.Load())[a] {
		if !slices.Contains(have, name) {
			have = append(have, name)
		}
	}
	return have
}

// due are the names to look up now, and the time until the next.
func (o *own) due(now time.Time) (names []string, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	wait = o.again
	for name, e := range o.entries {
		if left := e.due.Sub(now); left > 0 {
			wait = min(wait, left)
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, wait
}

// lookUp looks up names, several at a time, and returns when all are done.
func (o *own) lookUp(ctx context.Context, names []string, lookup Lookup) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, lookupsAtOnce)
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			addrs, ttl, err := lookup(ctx, name)
			if ctx.Err() == nil || err == nil {
				o.answer(name, addrs, ttl, err)
			}
		})
	}
	wg.Wait()
}

// answer keeps what a look-up found. Addresses that are no longer in the answer
// stay for a while, since some names have others each time; those of a name that
// can't be looked up stay until it can.
func (o *own) answer(name string, addrs []netip.Addr, ttl time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.entries[name]
	if e == nil { // no rule has it any more
		return
	}
	now := time.Now()
	e.err = err
	if err != nil {
		e.retry = min(max(2*e.retry, minRetry), maxRetry)
		e.due = now.Add(e.retry)
		o.publish()
		return
	}
	e.retry, e.due = 0, now.Add(min(max(ttl, minAgain), o.again))
	o.add(e, addrs, ttl, now)
}

// learn keeps what the guest's question found. It does not change when the name is
// looked up again.
func (o *own) learn(name string, addrs []netip.Addr, ttl time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e := o.entries[name]; e != nil {
		o.add(e, addrs, ttl, time.Now())
	}
}

// add adds addresses to those of a name, and forgets old ones. The caller holds the
// lock.
func (o *own) add(e *ownName, addrs []netip.Addr, ttl time.Duration, now time.Time) {
	until := now.Add(min(max(ttl, minLife), maxLife))
	for _, a := range addrs {
		e.addrs[plainAddr(a)] = until
	}
	maps.DeleteFunc(e.addrs, func(_ netip.Addr, until time.Time) bool { return !until.After(now) })
	if over := len(e.addrs) - maxOwnAddresses; over > 0 {
		oldest := slices.SortedFunc(maps.Keys(e.addrs), func(a, b netip.Addr) int { return e.addrs[a].Compare(e.addrs[b]) })
		for _, a := range oldest[:over] {
			delete(e.addrs, a)
		}
	}
	o.publish()
}

// failed says which names have no answer, and why; ended is why a look-up was
// not waited for.
func (o *own) failed(ended error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []error
	for _, name := range slices.Sorted(maps.Keys(o.entries)) {
		switch e := o.entries[name]; {
		case e.err != nil:
			all = append(all, fmt.Errorf("look up %s: %w", name, e.err))
		case e.due.IsZero():
			all = append(all, fmt.Errorf("look up %s: %w", name, ended))
		}
	}
	return errors.Join(all...)
}

// run looks names up as they come due.
func (o *own) run(ctx context.Context, lookup Lookup) {
	for ctx.Err() == nil {
		names, _ := o.due(time.Now())
		o.lookUp(ctx, names, lookup)
		_, wait := o.due(time.Now())
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-o.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}
