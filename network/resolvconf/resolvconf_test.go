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
