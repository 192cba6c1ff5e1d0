package survey

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeProc makes a /proc with one process.
func fakeProc(t *testing.T, proc string, pid int, name string, ns uint64, fds ...uint64) {
	t.Helper()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	for _, d := range []string{"ns", "fd"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	stat := fmt.Sprintf("%d (%s) S 1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0", pid, name)
	if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o644); err != nil {
		t.Fatal(err)
	}
	link := func(target, at string) {
		if err := os.Symlink(target, filepath.Join(dir, at)); err != nil {
			t.Fatal(err)
		}
	}
	link(fmt.Sprintf("net:[%d]", ns), "ns/net")
	link("/dev/null", "fd/0")
	for i, id := range fds {
		link(fmt.Sprintf("net:[%d]", id), fmt.Sprintf("fd/%d", 3+i))
	}
}

func TestFind(t *testing.T) {
	proc := t.TempDir()
	fakeProc(t, proc, 1_000_001, "init", 10)
	fakeProc(t, proc, 1_000_002, "sh", 10)
	fakeProc(t, proc, 1_000_003, "nginx", 20, 10, 40, 40)
	if err := os.MkdirAll(filepath.Join(proc, "1000004"), 0o755); err != nil { // it has ended meanwhile
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(proc, "self"), 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := `22 1 0:4 / /proc rw - proc proc rw
30 1 0:4 net:[30] /run/my\040nets/blue rw shared:1 - nsfs nsfs rw
31 1 0:4 mnt:[31] /run/mnt rw - nsfs nsfs rw
32 1 0:4 net:[30] /run/netns/blue rw - nsfs nsfs rw
33 1 8:1 net:[33] /mnt rw - ext4 /dev/sda rw
cut off
`
	if err := os.WriteFile(filepath.Join(proc, "self/mountinfo"), []byte(mounts), 0o644); err != nil {
		t.Fatal(err)
	}
	names := t.TempDir()
	if err := os.WriteFile(filepath.Join(names, "stale"), nil, 0o644); err != nil { // a leftover, on which no namespace is mounted
		t.Fatal(err)
	}
	f := newFinder(proc, names, filepath.Join(names, "nosuch"))
	if err := f.find(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[uint64][]string{}
	for _, p := range f.sorted() {
		got[p.id] = append(p.names, fmt.Sprint(len(p.processes)))
	}
	want := map[uint64][]string{10: {"2"}, 20: {"1"}, 30: {"/run/my nets/blue", "/run/netns/blue", "0"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	held := f.findHeld(t.Context())
	if len(held) != 1 || held[0].id != 40 || held[0].holder.name != "nginx" {
		t.Errorf("held: %+v", held)
	}
}

func TestFindWithoutProc(t *testing.T) {
	if err := newFinder(filepath.Join(t.TempDir(), "nosuch")).find(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want os.ErrNotExist", err)
	}
}

func TestEach(t *testing.T) {
	var sum atomic.Int64
	each(t.Context(), 100, func(i int) { sum.Add(int64(i)) })
	if sum.Load() != 4950 {
		t.Errorf("sum %d", sum.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	each(ctx, 100, func(int) { t.Error("called after the end") })
	each(t.Context(), 0, func(int) { t.Error("called for nothing") })
}
