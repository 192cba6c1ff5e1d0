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
	// minAgain and maxAgain bound the time until a name is looked up again when its
	// answer expires: seldom enough to spare the host's resolver, and often enough that a
	// denial follows a name that moves.
	minAgain = 10 * time.Second
	maxAgain = 5 * time.Minute
	// After a failed look-up the next one follows after minRetry, which doubles up to
	// maxRetry.
	minRetry = time.Second
	maxRetry = time.Minute

	lookupsAtOnce = 8
	// maxOwnAddresses is the number of addresses kept for one name; the oldest are
	// evicted. It covers a pool that returns other addresses each time.
	maxOwnAddresses = 1024
)

// A Lookup returns the addresses of a name, of both families, and their TTL. It must
// return after some seconds at most. An error means that the look-up failed; a name
// without addresses is not an error.
type Lookup func(ctx context.Context, name string) (addrs []netip.Addr, ttl time.Duration, err error)

// own holds the addresses of the exact names in rules, from our own look-ups: the guest
// cannot influence them. It is safe for concurrent use; names takes no lock.
type own struct {
	again     time.Duration             // the longest time until a name is looked up again
	published func(map[string]*ownName) // if not nil, called with the lock held after each change

	mu      sync.Mutex
	entries map[string]*ownName
	changed chan struct{} // holds a signal when there are new names
	byAddr  atomic.Pointer[map[netip.Addr][]string]
}

// ownName is one exact name.
type ownName struct {
	addrs map[netip.Addr]time.Time // expiry
	due   time.Time
	retry time.Duration // 0 if the last look-up was answered
	err   error         // of the last look-up
}

func newOwn(again time.Duration) *own {
	return &own{again: again, entries: map[string]*ownName{}, changed: make(chan struct{}, 1)}
}

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

// publish rebuilds the map that names reads. The caller holds the lock.
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

// names appends the names of an address to have, without duplicates.
func (o *own) names(have []string, a netip.Addr) []string {
	for _, name := range (*o.byAddr.Load())[a] {
		if !slices.Contains(have, name) {
			have = append(have, name)
		}
	}
	return have
}

// due returns the names to look up now, and the time until the next is due.
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

// answer stores the result of a look-up. Addresses that are no longer in the answer stay
// for a while, because some names return others each time. If the look-up failed, the
// name keeps its addresses.
func (o *own) answer(name string, addrs []netip.Addr, ttl time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.entries[name]
	if e == nil { // no rule has the name any more
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

// learn stores the result of the guest's query. It does not change when the name is
// looked up again.
func (o *own) learn(name string, addrs []netip.Addr, ttl time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e := o.entries[name]; e != nil {
		o.add(e, addrs, ttl, time.Now())
	}
}

// add adds addresses to a name and removes expired ones. The caller holds the lock.
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

// failed returns an error for each name without an answer. ended is the reason why a
// look-up was not awaited.
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

// run looks up names as they become due, until ctx ends.
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
