package resolvconf

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func servers() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.53")} }

// Revert removes the directories that Apply created and keeps the others: of
// /etc/netns/NAME/resolv.conf both may be missing.
func TestRevertRemovesDirs(t *testing.T) {
	for _, tt := range []struct {
		name, exists string
		missing      int
	}{{"two", "etc", 2}, {"one", "etc/netns", 1}, {"none", "etc/netns/web", 0}} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, tt.exists)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			f, err := Open(filepath.Join(root, "etc/netns/web/resolv.conf"), nil)
			if err != nil {
				t.Fatal(err)
			}
			e, err := f.Plan(servers())
			if err != nil {
				t.Fatal(err)
			}
			if e.MadeDirs != tt.missing {
				t.Errorf("%d directories are missing, want %d", e.MadeDirs, tt.missing)
			}
			if err := f.Apply(e); err != nil {
				t.Fatal(err)
			}
			for range 2 { // reverting twice is harmless
				if err := e.Revert(nil); err != nil {
					t.Fatal(err)
				}
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// FuzzSetServers replaces the name servers in any text and nothing else.
func FuzzSetServers(f *testing.F) {
	f.Add([]byte("search example.org\nnameserver 192.0.2.1\noptions ndots:1"))
	f.Add([]byte("nameserver\t192.0.2.1\n nameserver 192.0.2.2\r\n\x00"))
	f.Fuzz(func(t *testing.T, before []byte) {
		after := SetServers(before, servers())
		var named []string
		for line := range strings.Lines(string(after)) {
			if words := strings.Fields(line); len(words) > 0 && words[0] == "nameserver" {
				named = append(named, strings.TrimSpace(line))
			}
		}
		if len(named) != 1 || named[0] != "nameserver 192.0.2.53" {
			t.Errorf("%q becomes %q", before, after)
		}
		if again := SetServers(after, servers()); !bytes.Equal(again, after) {
			t.Errorf("%q becomes %q the second time", after, again)
		}
	})
}

// Edits after each other restore the original, whichever is reverted, and a file that somebody
// else has changed stays.
func TestNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	const original = "nameserver 192.0.2.1\n"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string { b, _ := os.ReadFile(path); return string(b) }
	f, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all []Edit
	to := func(text string) (changes bool) {
		t.Helper()
		e, changes, err := f.Next(all, func(before []byte) []byte { return append([]byte(text+"\n"), before...) })
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, *e)
		if err := f.Apply(e); err != nil {
			t.Fatal(err)
		}
		if want := text + "\n" + original; read() != want {
			t.Errorf("got %q, want %q", read(), want)
		}
		return changes
	}
	write(original)
	if !to("# one") || to("# one") || !to("# two") {
		t.Error("whether the file changes is wrong")
	}
	for _, e := range all {
		if err := e.Revert(nil); err != nil {
			t.Fatal(err)
		}
	}
	if read() != original {
		t.Errorf("restored: %q", read())
	}
	all = nil
	to("# three")
	write("# somebody else\n")
	if err := all[0].Revert(nil); err != nil || read() != "# somebody else\n" {
		t.Errorf("somebody else's file: %v, %q", err, read())
	}
	os.Remove(path)
	e, changes, err := f.Next(nil, func([]byte) []byte { return []byte("x") })
	if err != nil || !changes || e.Existed {
		t.Errorf("a file that is missing: %+v, %v", e, err)
	}
}

func TestSet(t *testing.T) {
	s := Settings{Servers: servers(), Search: []string{"web", "corp.example"}}
	for before, want := range map[string]string{
		"":                                     "search web corp.example\nnameserver 192.0.2.53\n",
		"options ndots:0\nnameserver ::1":      "search web corp.example\noptions ndots:0\nnameserver 192.0.2.53\n",
		"nameserver ::1\nsearch example.org\n": "search example.org\nnameserver 192.0.2.53\n",
	} {
		if got := string(Set([]byte(before), s)); got != want {
			t.Errorf("%q becomes %q, want %q", before, got, want)
		}
	}
}
