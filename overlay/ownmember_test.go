package overlay

import (
	"os"
	"path/filepath"
	"testing"
)

// Only a host that has a member, or begins a cluster, starts one by itself: any other one would begin a second registry.
func TestStartsMember(t *testing.T) {
	for name, tt := range map[string]struct {
		first bool
		hosts int
		files []string // below the directory of the registry
		want  bool
	}{
		"a new cluster": {true, 1, []string{""}, true},
		"a new cluster, whose first start was interrupted": {true, 1, []string{"member/snap/db"}, true},
		"a member":                          {false, 3, []string{"member/snap/db", "member/wal/0.wal"}, true},
		"the first host, which is a member": {true, 3, []string{"member/snap/db", "member/wal/0.wal"}, true},
		"no member":                         {false, 3, nil, false},
		"a new member, whose first start was interrupted":    {false, 3, []string{"member/snap/db", "member/wal.tmp/0.wal"}, false},
		"the first host, which becomes a member once more":   {true, 3, []string{"member/snap/db"}, false},
		"the first host, whose member was removed meanwhile": {true, 3, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := dir(t.TempDir())
			for _, f := range tt.files {
				path := filepath.Join(d.path(registryDir), f)
				must(t, os.MkdirAll(filepath.Dir(path), 0o700))
				if f == "" {
					must(t, os.MkdirAll(path, 0o700))
					continue
				}
				must(t, os.WriteFile(path, nil, 0o600))
			}
			if got := d.startsMember(&Settings{First: tt.first}, tt.hosts); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
