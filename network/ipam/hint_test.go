package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
)

// hintBytes returns the hint's bytes about addresses.
func hintBytes(t testing.TB, p *Pool) []byte {
	t.Helper()
	b, err := os.ReadFile(hintPath(p.Dir, p.Subnets[0].Prefix))
	if err != nil {
		t.Fatal(err)
	}
	return b[headerLen:]
}

// checkHint checks that the hint of the first subnet is exact.
func checkHint(t testing.TB, p *Pool) {
	t.Helper()
	s := p.Subnets[0].space()
	want := make([]byte, s.size)
	all, err := p.Entries()
	var foreign *ForeignError
	if err != nil && !errors.As(err, &foreign) {
		t.Fatal(err)
	}
	for _, e := range all {
		if i, ok := s.offset(e.Addr); ok {
			want[i] = 1
		}
	}
	got := hintBytes(t, p)
	if len(got) != len(want) {
		t.Fatalf("the hint has %d bytes, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i]&taken != want[i] {
			t.Fatalf("the hint has %d for %s, want %d", got[i], s.addr(i), want[i])
		}
	}
}

// Whatever happens to a hint, all free addresses are given out once, and the hint is right
// again in the end.
func TestDamagedHint(t *testing.T) {
	edit := func(change func(b []byte) []byte) func(path string) error {
		return func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, change(b), 0o644)
		}
	}
	for name, tt := range map[string]struct {
		damage func(path string) error
		valid  bool // after the damage; it may be stale
	}{
		"missing":    {os.Remove, false},
		"empty":      {edit(func([]byte) []byte { return nil }), false},
		"short":      {edit(func(b []byte) []byte { return b[:len(b)-1] }), false},
		"long":       {edit(func(b []byte) []byte { return append(b, 0) }), false},
		"bad title":  {edit(func(b []byte) []byte { b[3] ^= 1; return b }), false},
		"bad cursor": {edit(func(b []byte) []byte { copy(b[cursorAt:], "\xff\xff\xff\xff\xff\xff\xff\xff"); return b }), true},
		"zeros":      {edit(func(b []byte) []byte { clear(b); return b }), false},
		"all free":   {edit(func(b []byte) []byte { clear(b[headerLen:]); return b }), true},
		"all taken":  {edit(func(b []byte) []byte { return append(b[:headerLen], slices.Repeat([]byte{7}, len(b)-headerLen)...) }), true},
		"inverted":   {edit(func(b []byte) []byte { invert(b[headerLen:]); return b }), true},
		"directory":  {func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }, false},
		"dead link":  {func(path string) error { return errors.Join(os.Remove(path), os.Symlink("/nowhere/x", path)) }, false},
		"untouched":  {func(string) error { return nil }, true},
		"of other subnet": {edit(func(b []byte) []byte {
			copy(b, "cleat address hint 2: 128 from 198.51.100.0\n")
			return b
		}), false},
		"link to another file": {func(path string) error {
			return errors.Join(os.Rename(path, path+"x"), os.Symlink(path+"x", path))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/25")})
			for i := range 60 {
				allocate(t, p, Owner(fmt.Sprint("docker.", i%2)), none)
			}
			if _, err := p.ReleaseAll("docker.1"); err != nil {
				t.Fatal(err)
			}
			checkHint(t, p)
			path := hintPath(p.Dir, p.Subnets[0].Prefix)
			if err := tt.damage(path); err != nil {
				t.Fatal(err)
			}
			h := p.openHint(&p.Subnets[0], 0)
			defer h.close()
			if valid := h.load(); valid != tt.valid {
				t.Errorf("valid: %v", valid)
			}
			release(t, p, addr("192.0.2.1"), "docker.0")
			claim(t, p, "192.0.2.126", "docker.2")
			if got := allocateAll(t, p, "docker.3"); len(got) != 126-30 {
				t.Errorf("got %d addresses", len(got))
			}
			if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
				checkHint(t, p)
			}
		})
	}
}

func invert(b []byte) {
	for i := range b {
		b[i] ^= taken
	}
}

// The hint follows every change at once.
func TestHintFollows(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")})
	allocate(t, p, "docker.a", none)
	checkHint(t, p)
	claim(t, p, "192.0.2.77", "docker.a")
	checkHint(t, p)
	allocate(t, p, "docker.b", addr("192.0.2.88"))
	checkHint(t, p)
	release(t, p, addr("192.0.2.77"), "docker.a")
	checkHint(t, p)
}

// makeStale makes the hint of the first subnet say of all addresses the same.
func makeStale(t *testing.T, p *Pool, taken byte) {
	t.Helper()
	path := hintPath(p.Dir, p.Subnets[0].Prefix)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b[headerLen:] {
		b[headerLen+i] = taken
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A hint that has many taken addresses as free is rebuilt during one call. One that has a free
// address as taken is rebuilt when it has no other.
func TestStaleHint(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("10.20.0.0/16")})
	allocate(t, p, "docker.web", none)
	fill(t, p, 2, 1000)
	fill(t, p, 60000, 60010) // behind the free address
	makeStale(t, p, 0)
	if got := allocate(t, p, "docker.web", none); got != addr("10.20.3.232") {
		t.Errorf("got %s", got)
	}
	checkHint(t, p)
	makeStale(t, p, 1)
	if got := allocate(t, p, "docker.web", none); got != addr("10.20.3.233") {
		t.Errorf("got %s", got)
	}
	checkHint(t, p)
}

// Addresses that another process's rebuild has just cut off are free as far as a hint knows.
func TestShrunkHint(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/29")})
	allocateAll(t, p, "docker.a")
	h := p.openHint(&p.Subnets[0], 0)
	defer h.close()
	if !h.load() || h.next(1, 7) != 7 {
		t.Fatal("the hint has a free address")
	}
	if err := h.file.Truncate(headerLen + 3); err != nil {
		t.Fatal(err)
	}
	if got := h.next(1, 7); got != 3 {
		t.Errorf("the first free address is at %d", got)
	}
}

// An entry whose process was killed before it cleared the byte rests until the hint has no free
// address.
func TestLostByte(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/29")})
	for range 3 {
		allocate(t, p, "docker.a", none)
	}
	if err := os.Remove(p.path(addr("192.0.2.2"))); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(allocateAll(t, p, "docker.b")); got != "[192.0.2.4 192.0.2.5 192.0.2.6 192.0.2.2]" {
		t.Errorf("got %s", got)
	}
	checkHint(t, p)
}

// A changed range needs another hint; it replaces the old one.
func TestChangedRange(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")})
	allocate(t, p, "docker.a", none)
	p.Subnets[0].First, p.Subnets[0].Last = addr("192.0.2.1"), addr("192.0.2.4")
	p.Subnets[0].Exclude = prefixes("192.0.2.3/32")
	if got := fmt.Sprint(allocateAll(t, p, "docker.a")); got != "[192.0.2.2 192.0.2.4]" {
		t.Errorf("got %s", got)
	}
	p.Subnets[0].Exclude = nil // the hint is not rebuilt
	if got := fmt.Sprint(allocateAll(t, p, "docker.a")); got != "[192.0.2.3]" {
		t.Errorf("got %s", got)
	}
	checkHint(t, p)
	if files, err := os.ReadDir(p.Dir); err != nil || len(files) != 5 {
		t.Errorf("files: %v, %v", files, err)
	}
}

// FuzzHint: whatever is in a hint, all free addresses and no others are given out, and the
// hint is exact afterwards.
func FuzzHint(f *testing.F) {
	p := &Pool{Subnets: []Subnet{{Prefix: prefix("192.0.2.0/28"), Gateway: addr("192.0.2.1")}}}
	h := p.openHint(&p.Subnets[0], 0)
	title := h.title()
	f.Add([]byte(nil))
	f.Add(title)
	f.Add(append(slices.Clone(title), make([]byte, 8+16)...))
	f.Add(append(slices.Clone(title), "\x0f\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00\x01"...))
	f.Fuzz(func(t *testing.T, content []byte) {
		p := &Pool{Dir: t.TempDir(), Subnets: p.Subnets}
		claim(t, p, "192.0.2.5", "docker.web")
		claim(t, p, "192.0.2.14", "docker.web")
		if err := os.WriteFile(hintPath(p.Dir, p.Subnets[0].Prefix), content, 0o644); err != nil {
			t.Fatal(err)
		}
		release(t, p, addr("192.0.2.14"), "docker.web")
		if got := allocateAll(t, p, "docker.fuzz"); len(got) != 12 {
			t.Errorf("got %v", got)
		}
		checkHint(t, p)
	})
}

// Reused knows who had an address, as long as the hint is the first one.
func TestReused(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/29")})
	is := func(a netip.Addr, want bool) {
		t.Helper()
		if got := p.Reused(a); got != want {
			t.Errorf("reused %s: %v, want %v", a, got, want)
		}
	}
	is(addr("192.0.2.1"), true) // nobody knows
	first := allocate(t, p, "docker.a", none)
	is(first, false)
	claim(t, p, "192.0.2.5", "docker.b")
	is(addr("192.0.2.5"), false)
	for range 2 {
		release(t, p, first, "docker.a")
		is(first, true)
		claim(t, p, first.String(), "docker.c")
		is(first, true)
		release(t, p, first, "docker.c")
		claim(t, p, first.String(), "docker.a")
	}
	is(addr("192.0.2.5"), false)
	if err := os.Remove(hintPath(p.Dir, p.Subnets[0].Prefix)); err != nil {
		t.Fatal(err)
	}
	is(addr("192.0.2.5"), true)
	is(allocate(t, p, "docker.d", none), true)
	is(addr("203.0.113.1"), true)
	p.Subnets = append(p.Subnets, Subnet{Prefix: prefix("2001:db8::/64")})
	other, err := p.Allocate(p.Subnets[1].Prefix, "docker.d", none, nil)
	if err != nil {
		t.Fatal(err)
	}
	is(other, false) // entries of other subnets say nothing about it
	p = newPool(t, p.Subnets[0])
	claim(t, p, "192.0.2.2", "podman.a")
	is(addr("192.0.2.2"), false)
}
