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
	// minLife is the least time for which a name is kept after it was learned. Programs
	// keep addresses far longer than DNS allows (a browser for a minute, Java for 30 s or
	// for ever, a proxy until it is reloaded), and a connection that the rules allow must
	// not fail for that reason.
	minLife = time.Hour
	// maxLife is the longest time, because addresses change hands.
	maxLife = 24 * time.Hour

	maxCredits   = 8192    // pairs of address and name
	maxNameBytes = 1 << 20 // of all names together
	// maxNamesPerAddress is the number of names kept for one address. More names lead to
	// an address of a CDN, but a guest asks for few of them at a time.
	maxNamesPerAddress = 16
	// maxAddressesPerAnswer is the number of addresses in one answer that are examined.
	maxAddressesPerAnswer = 256
)

// credit is a name that led the guest to an address.
type credit struct {
	addr    netip.Addr
	name    string
	expires time.Time
	named   bool // a rule mentions the name
	at      *list.Element
}

// learned is the table of names that the guest received addresses for. A hostile guest
// chooses what it asks for, so the table is bounded, and names that no rule mentions are
// evicted first. It is safe for concurrent use.
type learned struct {
	mu     sync.Mutex
	byAddr map[netip.Addr][]*credit // latest last
	// plain and named hold the credits by age, oldest first.
	plain, named list.List
	nameBytes    int
}

// learn credits addresses to a name.
func (t *learned) learn(name string, addrs []netip.Addr, ttl time.Duration, named bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name = strings.Clone(name) // it may be a part of a whole answer
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

// plainAddr returns an address in the form in which flows are judged.
func plainAddr(a netip.Addr) netip.Addr { return a.WithZone("").Unmap() }

func (t *learned) credit(a netip.Addr, name string, expires time.Time, named bool) {
	for _, c := range t.byAddr[a] {
		if c.name == name {
			if c.expires.After(expires) {
				expires = c.expires
			}
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

func (t *learned) listOf(c *credit) *list.List {
	if c.named {
		return &t.named
	}
	return &t.plain
}

// oldest returns the credit to evict first when the table is full.
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

// expire removes expired credits from the front of each list. Others stay until they
// reach the front; they are ignored until then.
func (t *learned) expire(now time.Time) {
	for _, l := range []*list.List{&t.plain, &t.named} {
		for e := l.Front(); e != nil && !e.Value.(*credit).expires.After(now); e = l.Front() {
			t.forget(e.Value.(*credit))
		}
	}
}

// names appends the names of an address to have, latest first.
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

// sort moves each credit to the right list after the rules have changed.
func (t *learned) sort(named func(string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range []*list.List{&t.plain, &t.named} {
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
