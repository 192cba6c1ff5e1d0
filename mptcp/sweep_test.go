package mptcp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cleat/netns"
)

// TestSweep keeps what is known of namespaces that are, or may be.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	write := func(cookie int, boot string, inode uint64) {
		text := fmt.Sprintf(`{"boot": %q, "inode": %d}`, boot, inode)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("mptcp-%d.json", cookie)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1, "now", 101)    // is there
	write(2, "now", 102)    // is not
	write(3, "now", 0)      // of a cleat that did not note it
	write(4, "before", 101) // of another boot
	write(5, "now", 105)    // our own, which nobody sees
	if err := os.WriteFile(filepath.Join(dir, "mptcp-6.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &file{path: filepath.Join(dir, "mptcp-5.json"), boot: "now"}
	left := func(want ...string) {
		t.Helper()
		var got []string
		names, _ := filepath.Glob(dir + "/*")
		for _, n := range names {
			got = append(got, filepath.Base(n))
		}
		if !slices.Equal(got, want) {
			t.Errorf("left: %v, want %v", got, want)
		}
	}
	f.sweep(func() (map[uint64]bool, error) { return nil, errors.New("not to be told") })
	left("mptcp-1.json", "mptcp-2.json", "mptcp-3.json", "mptcp-4.json", "mptcp-5.json", "mptcp-6.json")
	f.sweep(func() (map[uint64]bool, error) { return map[uint64]bool{101: true}, nil })
	left("mptcp-1.json", "mptcp-3.json", "mptcp-5.json", "mptcp-6.json")
}

// TestNamespaces finds the namespace that the test is in, and not one that nobody is in.
func TestNamespaces(t *testing.T) {
	all, err := namespacesBy("/proc")
	if err != nil {
		t.Skip(err)
	}
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	id, err := ns.ID()
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	if !all[id] || all[1] {
		t.Errorf("%d is not among %v", id, all)
	}
}
