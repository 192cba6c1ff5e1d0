package statedir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	const other = 1500
	chown := func(path string) error { return os.Lchown(path, other, other) } // only root can
	for name, tt := range map[string]struct {
		make func(root string) error
		dir  string
		bad  string // the path reported; "": none
	}{
		"ours":                    {nil, "a/b", ""},
		"missing":                 {nil, "a/b/c/d", ""},
		"another's":               {func(root string) error { return chown(root + "/a/b") }, "a/b", "a/b"},
		"below another's":         {func(root string) error { return chown(root + "/a") }, "a/b", "a"},
		"missing below another's": {func(root string) error { return chown(root + "/a") }, "a/new", "a"},
		"group-writable": {func(root string) error {
			return errors.Join(os.Lchown(root+"/a/b", -1, 20), os.Chmod(root+"/a/b", 0o770))
		}, "a/b", "a/b"},
		"world-writable":         {func(root string) error { return os.Chmod(root+"/a/b", 0o777) }, "a/b", "a/b"},
		"world-writable, sticky": {func(root string) error { return os.Chmod(root+"/a/b", 0o777|os.ModeSticky) }, "a/b", "a/b"},
		"below world-writable":   {func(root string) error { return os.Chmod(root+"/a", 0o777) }, "a/b", "a"},
		"below sticky":           {func(root string) error { return os.Chmod(root+"/a", 0o777|os.ModeSticky) }, "a/b", ""},
		"a file":                 {func(root string) error { return os.WriteFile(root+"/a/f", nil, 0o600) }, "a/f", "a/f"},
		"a symlink":              {func(root string) error { return os.Symlink("b", root+"/a/l") }, "a/l", ""},
		"another's symlink":      {func(root string) error { return errors.Join(os.Symlink("b", root+"/a/l"), chown(root+"/a/l")) }, "a/l", "a/l"},
		"symlink to another's":   {func(root string) error { return errors.Join(os.Symlink("b", root+"/a/l"), chown(root+"/a/b")) }, "a/l", "a/b"},
		"symlink to /tmp":        {func(root string) error { return os.Symlink("/tmp", root+"/a/l") }, "a/l", "/tmp"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(root+"/a/b", 0o755); err != nil {
				t.Fatal(err)
			}
			if tt.make != nil {
				if err := tt.make(root); err != nil {
					t.Skip(err)
				}
			}
			err := Check(filepath.Join(root, tt.dir))
			var unsafe *Unsafe
			if errors.As(err, &unsafe) != (tt.bad != "") || unsafe == nil && err != nil {
				t.Fatalf("got %v", err)
			}
			want := tt.bad
			if !filepath.IsAbs(want) {
				want = filepath.Join(root, want)
			}
			if unsafe != nil && unsafe.Path != want {
				t.Errorf("reported %q, want %q: %v", unsafe.Path, want, err)
			}
		})
	}
}
