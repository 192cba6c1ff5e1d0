package ipam

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
)

// model is what a pool should be.
type model struct {
	taken      map[netip.Addr]Owner
	remembered map[Owner]netip.Addr
	cursor     int
	exact      bool // the hint is undamaged, so the model knows the next address
}

// next returns the address that Allocate should take; the zero Addr if the pool is full.
func (m *model) next(s *space) netip.Addr {
	for i := range s.size {
		a := s.addr((m.cursor + i) % s.size)
		if _, blocked := find(s.blocks, a); !blocked && m.taken[a] == "" {
			return a
		}
	}
	return netip.Addr{}
}

// script is a run of random operations on a pool and its model.
type script struct {
	*testing.T
	*rand.Rand
	pool   *Pool
	subnet *Subnet
	space  space
	model  model
	log    []string
}

// TestRandomOperations compares a pool with its model.
func TestRandomOperations(t *testing.T) {
	seeds, steps := 40, 500
	if testing.Short() {
		seeds = 5
	}
	subnets := []Subnet{
		{Prefix: prefix("192.0.2.0/28"), Gateway: addr("192.0.2.1")},
		{Prefix: prefix("192.0.2.0/27"), First: addr("192.0.2.5"), Last: addr("192.0.2.20"), Exclude: prefixes("192.0.2.8/30", "192.0.2.10/32")},
		{Prefix: prefix("192.0.2.0/31")},
		{Prefix: prefix("2001:db8::/64"), Last: addr("2001:db8::9"), Gateway: addr("2001:db8::1")},
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			p := newPool(t, subnets[seed%uint64(len(subnets))])
			s := &script{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), pool: p, subnet: &p.Subnets[0], space: p.Subnets[0].space()}
			s.model = model{taken: map[netip.Addr]Owner{}, remembered: map[Owner]netip.Addr{}, exact: true}
			for range steps {
				s.step()
				if t.Failed() {
					t.Fatalf("after %v", s.log[max(0, len(s.log)-20):])
				}
			}
		})
	}
}

func (s *script) owner() Owner {
	if s.IntN(10) == 0 {
		return Reservation("note")
	}
	return Owner(fmt.Sprint("docker.", s.IntN(5)))
}

// someAddr returns an address in the subnet or near it.
func (s *script) someAddr() netip.Addr {
	first, _ := Bounds(s.subnet.Prefix)
	return plus(first, uint64(s.IntN(34)))
}

func (s *script) step() {
	owner, a := s.owner(), s.someAddr()
	step, do := "", func() {}
	switch s.IntN(12) {
	case 0, 1, 2:
		step, do = "allocate", func() { s.allocate(owner, netip.Addr{}) }
	case 3:
		step, do = "prefer", func() { s.allocate(owner, a) }
	case 4:
		step, do = "claim", func() { s.claim(owner, a) }
	case 5, 6, 7:
		step, do = "release", func() { s.release(owner, a) }
	case 8:
		step, do = "releaseAll", func() { s.releaseAll(owner) }
	case 9:
		step, do = "remember", func() { s.remember(owner, a) }
	case 10:
		step, do = "entries", s.entries
	case 11:
		step, do = "damage", s.damage
	}
	s.log = append(s.log, fmt.Sprint(step, " ", a, " ", owner))
	do()
}

func (s *script) allocate(owner Owner, prefer netip.Addr) {
	want, preferred := s.model.next(&s.space), false
	if s.subnet.usable(prefer) == nil && (s.model.taken[prefer] == "" || s.model.taken[prefer] == owner) {
		want, preferred = prefer, true
	}
	got, err := s.pool.Allocate(s.subnet.Prefix, owner, prefer, nil)
	var full *FullError
	switch {
	case errors.As(err, &full) && want.IsValid(), err != nil && full == nil, err == nil && !want.IsValid():
		s.Errorf("allocate: got %s, %v, want %s", got, err, want)
	case full != nil:
	case !preferred && s.model.taken[got] != "" || s.subnet.usable(got) != nil:
		s.Errorf("allocate: got %s of %q", got, s.model.taken[got])
	case got != want && (preferred || s.model.exact):
		s.Errorf("allocate: got %s, want %s", got, want)
	case preferred:
		s.model.taken[got] = owner
	default:
		offset, ok := s.space.offset(got)
		if !ok {
			s.Errorf("allocate: %s is out of range", got)
		}
		s.model.taken[got], s.model.cursor = owner, (offset+1)%s.space.size
	}
}

func (s *script) claim(owner Owner, a netip.Addr) {
	err := s.pool.Claim(a, owner, nil)
	var taken *TakenError
	var unusable *UnusableError
	switch current := s.model.taken[a]; {
	case s.subnet.usable(a) != nil:
		if !errors.As(err, &unusable) {
			s.Errorf("claim %s: got %v", a, err)
		}
	case current != "" && current != owner:
		if !errors.As(err, &taken) || taken.Owner != current {
			s.Errorf("claim %s: got %v, want that %q has it", a, err, current)
		}
	case err != nil:
		s.Errorf("claim %s: %v", a, err)
	default:
		s.model.taken[a] = owner
	}
}

func (s *script) release(owner Owner, a netip.Addr) {
	if current := s.model.taken[a]; s.IntN(3) > 0 && current != "" {
		owner = current
	}
	if err := s.pool.Release(a, owner); err != nil {
		s.Error(err)
	}
	if s.model.taken[a] == owner {
		delete(s.model.taken, a)
	}
}

func (s *script) releaseAll(owner Owner) {
	got, err := s.pool.ReleaseAll(owner)
	want := 0
	maps.DeleteFunc(s.model.taken, func(_ netip.Addr, o Owner) bool {
		if o == owner {
			want++
		}
		return o == owner
	})
	if err != nil || len(got) != want {
		s.Errorf("release all of %s: got %v, %v, want %d", owner, got, err, want)
	}
}

func (s *script) remember(owner Owner, a netip.Addr) {
	err := s.pool.Remember(a, owner)
	_, reserved := owner.Reserved()
	if ok := s.subnet.Prefix.Contains(a) && !reserved; ok != (err == nil) {
		s.Errorf("remember %s of %s: %v", a, owner, err)
	} else if ok {
		s.model.remembered[owner] = a
	}
	if got := s.pool.Remembered(s.subnet.Prefix, owner); got != s.model.remembered[owner] {
		s.Errorf("remembered of %s: got %s, want %s", owner, got, s.model.remembered[owner])
	}
}

func (s *script) entries() {
	got, err := s.pool.Entries()
	if err != nil {
		s.Fatal(err)
	}
	var want []Entry
	for a, owner := range s.model.taken {
		want = append(want, Entry{a, owner})
	}
	slices.SortFunc(want, func(a, b Entry) int { return a.Addr.Compare(b.Addr) })
	if !slices.Equal(got, want) {
		s.Errorf("entries: got %v, want %v", got, want)
	}
}

func (s *script) damage() {
	path := hintPath(s.pool.Dir, s.subnet.Prefix)
	b, err := os.ReadFile(path)
	if err != nil || s.IntN(3) > 0 {
		return
	}
	if s.IntN(2) == 0 {
		if err := os.Remove(path); err != nil {
			s.Fatal(err)
		}
		s.model.cursor, s.model.exact = 0, true
		return
	}
	b[s.IntN(len(b))] ^= 1
	b = b[:len(b)-s.IntN(2)]
	if err := os.WriteFile(path, b, 0o644); err != nil {
		s.Fatal(err)
	}
	s.model.exact = false
}
