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

// TestSweep checks that state of existing namespaces, and of those that may exist, is
// kept.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	write := func(cookie int, boot string, inode uint64) {
		text := fmt.Sprintf(`{"boot": %q, "inode": %d}`, boot, inode)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("mptcp-%d.json", cookie)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1, "now", 101)    // exists
	write(2, "now", 102)    // does not exist
	write(3, "now", 0)      // from a version that did not record the inode
	write(4, "before", 101) // from another boot
	write(5, "now", 105)    // the caller's own, which no process reports
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

// TestNamespaces checks that the test's own namespace is found, and an unused number is
// not.
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
