package seal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestNames(t *testing.T) {
	set := uint64(1<<unix.CAP_CHOWN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_CHECKPOINT_RESTORE | 1<<63)
	if d := cmp.Diff([]string{"CAP_CHOWN", "CAP_NET_ADMIN", "CAP_CHECKPOINT_RESTORE", "CAP_63"}, Names(set)); d != "" {
		t.Error(d)
	}
	if got := Names(0); got == nil || len(got) > 0 {
		t.Errorf("of none: %#v", got)
	}
}

func TestDirsOf(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"etc", "data", "data/version"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"etc/file": "../data/file", "data/file": filepath.Join(dir, "data/version/file"), "etc/round": "round",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	in := func(subs ...string) (all []string) {
		for _, s := range subs {
			all = append(all, filepath.Join(dir, s))
		}
		return all
	}
	for _, tt := range []struct {
		name string
		want []string
	}{
		{"data/version/file", in("data/version")},
		{"etc/file", in("etc", "data", "data/version")},
		{"nosuch/file", in("nosuch")},
	} {
		if d := cmp.Diff(tt.want, DirsOf(filepath.Join(dir, tt.name))); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
	if got := DirsOf(filepath.Join(dir, "etc/round")); len(got) != 8 {
		t.Errorf("a link to itself: %d directories", len(got))
	}
}
