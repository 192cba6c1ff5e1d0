package ipam

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// somebodysFiles puts files that are no entries into the directory of a pool, and returns the
// name of each.
func somebodysFiles(t *testing.T, p *Pool) []string {
	t.Helper()
	names := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:DB8::1", "README"}
	if err := errors.Join(
		os.WriteFile(filepath.Join(p.Dir, names[0]), []byte("docker.web"), 0o644),
		os.Mkdir(filepath.Join(p.Dir, names[1]), 0o755),
		os.Symlink("/etc/passwd", filepath.Join(p.Dir, names[2])),
		os.Symlink("docker.web", filepath.Join(p.Dir, names[3])),
		os.Symlink("docker.web", filepath.Join(p.Dir, names[4])),
	); err != nil {
		t.Fatal(err)
	}
	return names
}

// Files of somebody else are reported, don't stop the pool, and are left alone.
func TestForeignFiles(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/29")})
	names := somebodysFiles(t, p)
	if got := fmt.Sprint(allocateAll(t, p, "docker.web")); got != "[192.0.2.4 192.0.2.5 192.0.2.6]" {
		t.Errorf("got %s", got)
	}
	all, err := p.Entries()
	var foreign *ForeignError
	if !errors.As(err, &foreign) || !slices.Equal(foreign.Names, names) || len(all) != 3 {
		t.Errorf("got %v, %v", all, err)
	}
	if want := fmt.Sprintf(`directory %s has files that are not address entries: "192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:DB8::1" and "README"`, p.Dir); err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	for _, name := range names[:3] {
		if err := p.Claim(addr(name), "docker.web", nil); !errors.As(err, &foreign) {
			t.Errorf("claim: got %v", err)
		}
		if _, err := p.Owner(addr(name)); !errors.As(err, &foreign) {
			t.Errorf("owner: got %v", err)
		}
		release(t, p, addr(name), "docker.web")
	}
	if released, err := p.ReleaseAll("docker.web"); len(released) != 3 || !errors.As(err, &foreign) {
		t.Errorf("got %v, %v", released, err)
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(p.Dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func mount(t *testing.T, flags uintptr, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func TestReadOnly(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/29")})
	p.Dir = mount(t, 0, "")
	claim(t, p, "192.0.2.3", "docker.db")
	if err := syscall.Mount("none", p.Dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err1 := p.Allocate(p.Subnets[0].Prefix, "docker.web", none, nil)
	err2 := p.Claim(addr("192.0.2.2"), "docker.web", nil)
	err3 := p.Release(addr("192.0.2.3"), "docker.db")
	err4 := p.Remember(addr("192.0.2.3"), "docker.db")
	for _, err := range []error{err1, err2, err3, err4} {
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), p.Dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
	}
	if all, err := p.Entries(); err != nil || fmt.Sprint(all) != "[{192.0.2.3 docker.db}]" {
		t.Errorf("got %v, %v", all, err)
	}
}

// On a full disk nothing is half made. Hints are not needed.
func TestFullDisk(t *testing.T) {
	p := newPool(t, Subnet{Prefix: prefix("192.0.2.0/24")})
	p.Dir = mount(t, 0, "size=8k,nr_inodes=20")
	if err := os.WriteFile(filepath.Join(p.Dir, ".fill"), make([]byte, 8<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	var last error
	for i := 1; last == nil; i++ {
		a, err := p.Allocate(p.Subnets[0].Prefix, "docker.web", none, nil)
		if err == nil && a != addr(fmt.Sprint("192.0.2.", i)) {
			t.Errorf("got %s", a)
		}
		last = err
	}
	if !errors.Is(last, syscall.ENOSPC) || !strings.Contains(last.Error(), p.Dir) {
		t.Errorf("got %v", last)
	}
	all, err := p.Entries()
	if err != nil || len(all) < 10 {
		t.Errorf("got %d entries, %v", len(all), err)
	}
	if err := p.Remember(addr("192.0.2.1"), "docker.web"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("remember: got %v", err)
	}
	if released, err := p.ReleaseAll("docker.web"); err != nil || len(released) != len(all) {
		t.Errorf("released %d of %d, %v", len(released), len(all), err)
	}
	for _, f := range []string{".remembered", ".remembered.new"} {
		if _, err := os.Lstat(filepath.Join(p.Dir, f)); err == nil {
			t.Errorf("left %s", f)
		}
	}
}

// FuzzEntry: no name or target of a file makes a method panic, return an invalid entry or
// remove the file.
func FuzzEntry(f *testing.F) {
	f.Add("192.0.2.1", "docker.web")
	f.Add("192.0.2.1", "reserved/")
	f.Add("192.0.2.01", "docker.web")
	f.Add("2001:db8::1%eth0", "docker.web")
	f.Add("::ffff:192.0.2.1", "/etc/passwd")
	f.Add(".x", "docker.web")
	f.Fuzz(func(t *testing.T, name, target string) {
		if name != filepath.Base(name) || name == "." || name == ".." {
			t.Skip("no name")
		}
		p := &Pool{Dir: t.TempDir(), Subnets: []Subnet{{Prefix: prefix("192.0.2.0/30")}}}
		if err := os.Symlink(target, filepath.Join(p.Dir, name)); err != nil {
			t.Skip(err)
		}
		all, err := p.Entries()
		var foreign *ForeignError
		switch {
		case err != nil && !errors.As(err, &foreign):
			t.Error(err)
		case len(all) == 1 && (all[0].Addr.String() != name || !all[0].Owner.valid()):
			t.Errorf("entry %v of %q", all[0], name)
		case name[0] != '.' && (len(all) == 1) == (foreign != nil):
			t.Errorf("entries %v and error %v", all, err)
		}
		want := 2
		if name == "192.0.2.1" || name == "192.0.2.2" {
			want = 1
		}
		if got := allocateAll(t, p, "docker.fuzz"); len(got) != want {
			t.Errorf("got %v, want %d addresses", got, want)
		}
		if _, err := p.ReleaseAll("docker.fuzz"); err != nil && !errors.As(err, &foreign) {
			t.Error(err)
		}
		if got, err := os.Readlink(filepath.Join(p.Dir, name)); (err != nil || got != target) && target != "docker.fuzz" {
			t.Errorf("file of somebody else: %q, %v", got, err)
		}
	})
}
