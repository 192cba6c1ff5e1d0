package policy

import (
	"container/list"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Names are kept for at least an hour after they were learned: programs keep
	// addresses far longer than DNS lets them (a browser for a minute, Java for
	// 30 s or for good, a proxy until it is reloaded), and a connection that the
	// rules allow must not fail for it.
	minLife = time.Hour
	// No longer than a day: addresses change hands.
	maxLife = 24 * time.Hour

	maxCredits   = 8192    // pairs of address and name
	maxNameBytes = 1 << 20 // of all names together
	// More names lead to one address of a CDN, but the guest asks for few of
	// them at a time.
	maxNamesPerAddress = 16
	// More addresses in one answer are not looked at.
	maxAddressesPerAnswer = 256
)

// credit is a name that led the guest to an address.
type credit struct {
	addr    netip.Addr
	name    string
	expires time.Time
	named   bool // by a rule
	at      *list.Element
}

// learned are the names that the guest was given addresses for. A hostile guest
// decides what it asks for, so the table is bounded, and what no rule speaks of
// goes first. Safe for concurrent use.
type learned struct {
	mu     sync.Mutex
	byAddr map[netip.Addr][]*credit // the latest last
	// plain and named are the credits by age, the oldest first.
	plain, named *list.List
	nameBytes    int
}

func newLearned() *learned {
	return &learned{byAddr: map[netip.Addr][]*credit{}, plain: list.New(), named: list.New()}
}

// learn credits addresses to a name.
func (t *learned) learn(name string, addrs []netip.Addr, ttl time.Duration, named bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name = strings.Clone(name) // perhaps a piece of a whole answer
	now := time.Now()
	life := min(max(ttl, minLife), maxLife)
	for _, a := range addrs[:min(len(addrs), maxAddressesPerAnswer)] {
		t.credit(plainAddr(a), name, now.Add(life), named)
	}
	t.expire(now)
	for t.plain.Len()+t.named.Len() > maxCredits || t.nameBytes > maxNameBytes {
		t.forget(t.oldest())
	}
}

// plainAddr is an address as flows are judged by.
func plainAddr(a netip.Addr) netip.Addr { return a.WithZone("").Unmap() }

func (t *learned) credit(a netip.Addr, name string, expires time.Time, named bool) {
	for _, c := range t.byAddr[a] {
		if c.name == name {
			expires = later(expires, c.expires)
			t.forget(c)
			break
		}
	}
	if have := t.byAddr[a]; len(have) >= maxNamesPerAddress {
		i := slices.IndexFunc(have, func(c *credit) bool { return !c.named })
		t.forget(have[max(i, 0)])
	}
	c := &credit{addr: a, name: name, expires: expires, named: named}
	c.at = t.listOf(c).PushBack(c)
	t.byAddr[a] = append(t.byAddr[a], c)
	t.nameBytes += len(name)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (t *learned) listOf(c *credit) *list.List {
	if c.named {
		return t.named
	}
	return t.plain
}

// oldest is what goes first when the table is full.
func (t *learned) oldest() *credit {
	if e := t.plain.Front(); e != nil {
		return e.Value.(*credit)
	}
	return t.named.Front().Value.(*credit)
}

func (t *learned) forget(c *credit) {
	t.listOf(c).Remove(c.at)
	t.nameBytes -= len(c.name)
	rest := slices.DeleteFunc(t.byAddr[c.addr], func(o *credit) bool { return o == c })
	if len(rest) == 0 {
		delete(t.byAddr, c.addr)
	} else {
		t.byAddr[c.addr] = rest
	}
}

// expire forgets the oldest whose time is over; others follow when they come to
// the front, and count for nothing until then.
func (t *learned) expire(now time.Time) {
	for _, l := range []*list.List{t.plain, t.named} {
		for e := l.Front(); e != nil && !e.Value.(*credit).expires.After(now); e = l.Front() {
			t.forget(e.Value.(*credit))
		}
	}
}

// names appends the names of an address to have, the latest first.
func (t *learned) names(have []string, a netip.Addr) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	credits := t.byAddr[a]
	if len(credits) == 0 {
		return have
	}
	now := time.Now()
	for _, c := range slices.Backward(credits) {
		if c.expires.After(now) {
			have = append(have, c.name)
		}
	}
	return have
}

// sort puts each credit in its list again: the rules have changed.
func (t *learned) sort(named func(string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range []*list.List{t.plain, t.named} {
		next := l.Front()
		for range l.Len() {
			c := next.Value.(*credit)
			next = next.Next()
			if is := named(c.name); is != c.named {
				l.Remove(c.at)
				c.named = is
				c.at = t.listOf(c).PushBack(c)
			}
		}
	}
}
