package ipam

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func remember(t *testing.T, p *Pool, a string, owner Owner) {
	t.Helper()
	if err := p.Remember(addr(a), owner); err != nil {
		t.Fatal(err)
	}
}

func TestRemember(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")}, Subnet{Prefix: prefix("2001:db8::/64")})
	check := func(subnet int, owner Owner, want netip.Addr) {
		t.Helper()
		if got := p.Remembered(p.Subnets[subnet].Prefix, owner); got != want {
			t.Errorf("remembered of %s: got %s, want %s", owner, got, want)
		}
	}
	check(0, "docker.web", none)
	remember(t, p, "192.0.2.5", "docker.web")
	remember(t, p, "2001:db8::5", "docker.web")
	remember(t, p, "192.0.2.6", "docker.web2")
	check(0, "docker.web", addr("192.0.2.5"))
	check(1, "docker.web", addr("2001:db8::5"))
	check(0, "docker.web2", addr("192.0.2.6"))
	check(1, "docker.web2", none)
	check(0, "docker.we", none)
	remember(t, p, "192.0.2.7", "docker.web")
	check(0, "docker.web", addr("192.0.2.7"))
	text, err := os.ReadFile(p.notesPath())
	if want := "docker.web 192.0.2.5\ndocker.web 2001:db8::5\ndocker.web2 192.0.2.6\ndocker.web 192.0.2.7\n"; err != nil || string(text) != want {
		t.Errorf("notes: %q, %v", text, err)
	}
	if err := os.WriteFile(p.notesPath(), append(text, "docker.web 192.0.2.1"...), 0o644); err != nil {
		t.Fatal(err)
	}
	check(0, "docker.web", addr("192.0.2.7")) // the last line is incomplete
	for name, err := range map[string]error{
		"reservation": p.Remember(addr("192.0.2.9"), Reservation("x")),
		"outside":     p.Remember(addr("198.51.100.9"), "docker.x"),
		"owner":       p.Remember(addr("192.0.2.9"), "docker x"),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// An owner gets its address again, unless somebody else has it.
func TestRememberedIsPreferred(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")})
	again := func(owner Owner) netip.Addr {
		return allocate(t, p, owner, p.Remembered(p.Subnets[0].Prefix, owner))
	}
	first := again("docker.web")
	remember(t, p, first.String(), "docker.web")
	release(t, p, first, "docker.web")
	again("docker.other")
	if got := again("docker.web"); got != first {
		t.Errorf("got %s, want %s", got, first)
	}
	release(t, p, first, "docker.web")
	claim(t, p, first.String(), "docker.thief")
	if got := again("docker.web"); got == first {
		t.Errorf("got %s, which is taken", got)
	}
}

// The notes stay below their limit, and the oldest are dropped. An owner that is remembered
// again and again drops no others.
func TestNotesAreBounded(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("10.20.0.0/16")}, Subnet{Prefix: prefix("2001:db8::/64")})
	s := p.Subnets[0].space()
	owner := func(i int) Owner { return Owner(fmt.Sprintf("docker.%090d", i)) }
	largest := int64(0)
	note := func(a string, o Owner) {
		remember(t, p, a, o)
		info, err := os.Stat(p.notesPath())
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, info.Size())
	}
	note("10.20.255.254", "docker.first")
	const n = 1000
	for i := range n {
		note(s.addr(i+1).String(), owner(i))
	}
	note("2001:db8::77", owner(n-1))
	for i := range 3000 {
		note(s.addr(i+1).String(), "docker.loop")
	}
	if largest > maxNotes || largest < maxNotes-200 {
		t.Errorf("the notes had %d bytes", largest)
	}
	if got := p.Remembered(p.Subnets[0].Prefix, "docker.first"); got != none {
		t.Errorf("the oldest note is still there: %s", got)
	}
	for i := n - 250; i < n; i++ {
		if got := p.Remembered(p.Subnets[0].Prefix, owner(i)); got != s.addr(i+1) {
			t.Fatalf("note %d: got %s", i, got)
		}
	}
	if got := p.Remembered(p.Subnets[1].Prefix, owner(n-1)); got != addr("2001:db8::77") {
		t.Errorf("got %s", got)
	}
	if got := p.Remembered(p.Subnets[0].Prefix, "docker.loop"); got != s.addr(3000) {
		t.Errorf("got %s", got)
	}
}

// FuzzNotes: whatever is in the notes, the newest of each owner counts, also after they have
// been compacted.
func FuzzNotes(f *testing.F) {
	f.Add("")
	f.Add("docker.db 192.0.2.9\n")
	f.Add("docker.db 192.0.2.9\ndocker.web 192.0.2.1\n\x00\x00\n")
	f.Add("docker.db 192.0.2.9\ndocker.db 192.0.2.8\ndocker.db 192.0.2.7")
	f.Add("docker.db 192.0.2.9\ndocker.db 198.51.100.8\nreserved/x 192.0.2.1\n")
	f.Fuzz(func(t *testing.T, notes string) {
		p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")})
		if err := os.WriteFile(p.notesPath(), []byte(notes), 0o644); err != nil {
			t.Fatal(err)
		}
		before := p.Remembered(p.Subnets[0].Prefix, "docker.db")
		if err := p.compactNotes(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(p.notesPath())
		if err != nil || len(text) > maxNotes/2 {
			t.Fatalf("notes of %d bytes, %v", len(text), err)
		}
		if after := p.Remembered(p.Subnets[0].Prefix, "docker.db"); after != before && len(notes) <= maxNotes/2 {
			t.Errorf("got %s, want %s", after, before)
		}
		for line := range strings.Lines(string(text)) {
			if _, _, ok := parseNote(line); !ok {
				t.Errorf("line %q", line)
			}
		}
		if again := p.newestNotes(string(text)); string(again) != string(text) {
			t.Errorf("compacted again: %q, want %q", again, text)
		}
	})
}
