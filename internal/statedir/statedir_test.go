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
		bad  string // what is wrong; "": nothing
	}{
		"ours":             {nil, "a/b", ""},
		"not there":        {nil, "a/b/c/d", ""},
		"another's":        {func(root string) error { return chown(root + "/a/b") }, "a/b", "a/b"},
		"in another's":     {func(root string) error { return chown(root + "/a") }, "a/b", "a"},
		"to be made there": {func(root string) error { return chown(root + "/a") }, "a/new", "a"},
		"of a group's": {func(root string) error {
			return errors.Join(os.Lchown(root+"/a/b", -1, 20), os.Chmod(root+"/a/b", 0o770))
		}, "a/b", "a/b"},
		"everybody's":          {func(root string) error { return os.Chmod(root+"/a/b", 0o777) }, "a/b", "a/b"},
		"everybody's, sticky":  {func(root string) error { return os.Chmod(root+"/a/b", 0o777|os.ModeSticky) }, "a/b", "a/b"},
		"in everybody's":       {func(root string) error { return os.Chmod(root+"/a", 0o777) }, "a/b", "a"},
		"in a sticky one":      {func(root string) error { return os.Chmod(root+"/a", 0o777|os.ModeSticky) }, "a/b", ""},
		"a file":               {func(root string) error { return os.WriteFile(root+"/a/f", nil, 0o600) }, "a/f", "a/f"},
		"a link":               {func(root string) error { return os.Symlink("b", root+"/a/l") }, "a/l", ""},
		"another's link":       {func(root string) error { return errors.Join(os.Symlink("b", root+"/a/l"), chown(root+"/a/l")) }, "a/l", "a/l"},
		"a link to another's":  {func(root string) error { return errors.Join(os.Symlink("b", root+"/a/l"), chown(root+"/a/b")) }, "a/l", "a/b"},
		"a link to everywhere": {func(root string) error { return os.Symlink("/tmp", root+"/a/l") }, "a/l", "/tmp"},
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
				t.Errorf("%q is wrong, want %q: %v", unsafe.Path, want, err)
			}
		})
	}
}
