package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// rootEnv makes the test binary change its root to its argument, print a line, and wait
// for the end of its input.
const rootEnv = "CLEAT_TEST_FILES_ROOT"

func TestMain(m *testing.M) {
	if os.Getenv(rootEnv) == "" {
		os.Exit(m.Run())
	}
	if err := unix.Chroot(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("there")
	io.Copy(io.Discard, os.Stdin)
}

// guests is the first host uid that a container's root may have.
const guests = 100_000

// container starts a process with a directory as its root, in a user namespace unless uid
// is 0, where it is root. It skips if that is impossible.
func container(t *testing.T, dir string, uid int) *Root {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a process another root directory")
	}
	cmd := exec.Command("/proc/self/exe", dir) // the directory of os.Args[0] may be accessible to root only
	cmd.Env = append(os.Environ(), rootEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if uid != 0 {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
		cmd.SysProcAttr.Credential = &syscall.Credential{NoSetGroups: true} // root, by the mapping
		one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = one, one
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	if err := cmd.Start(); err != nil {
		t.Skip("no user namespace: ", err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Skip("it can't change its root directory: ", err)
	}
	here, err := netns.Current()
	must(t, err)
	defer here.Close()
	r, err := Of(cmd.Process.Pid, here)
	must(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree returns a directory with etc/resolv.conf that belongs to a user and is accessible
// to others.
func tree(t *testing.T, uid int) string {
	t.Helper()
	if uid != 0 && os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "etc/resolv.conf"), []byte("nameserver 192.0.2.1\n"), 0o644))
	for at := dir; len(at) > len(os.TempDir()); at = filepath.Dir(at) {
		must(t, os.Chmod(at, 0o755))
	}
	if uid != 0 {
		must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error { return errors.Join(err, os.Lchown(path, uid, uid)) }))
	}
	return dir
}

func TestFiles(t *testing.T) {
	for _, uid := range []int{0, guests} {
		dir := tree(t, uid)
		r := container(t, dir, uid)
		if text, err := r.Read("etc/resolv.conf", 100); err != nil || string(text) != "nameserver 192.0.2.1\n" {
			t.Errorf("%d: %q, %v", uid, text, err)
		}
		if _, err := r.Read("etc/resolv.conf", 10); !errors.Is(err, ErrTooLong) {
			t.Errorf("%d: of 10 bytes: %v", uid, err)
		}
		must(t, r.Write("etc/resolv.conf", []byte("x")))
		must(t, r.Write("etc/new", []byte("y")))
		for name, want := range map[string]string{"etc/resolv.conf": "x", "etc/new": "y"} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			info, statErr := os.Stat(filepath.Join(dir, name))
			if err != nil || statErr != nil || string(got) != want || int(info.Sys().(*syscall.Stat_t).Uid) != uid {
				t.Errorf("%d: %s is %q, %v, %v", uid, name, got, info, err)
			}
		}
		must(t, r.Remove("etc/new"))
		if _, err := r.Read("etc/new", 10); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d: removed: %v", uid, err)
		}
	}
}

// What a container puts in place of a file is not opened, and leads nowhere else.
func TestHostileFiles(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(outside, []byte("secret"), 0o644))
	for name, put := range map[string]func(path string) error{
		"a FIFO":           func(path string) error { return unix.Mkfifo(path, 0o666) },
		"a device":         func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }, // /dev/zero
		"a block device":   func(path string) error { return unix.Mknod(path, unix.S_IFBLK|0o666, int(unix.Mkdev(7, 200))) },
		"a directory":      func(path string) error { return os.Mkdir(path, 0o755) },
		"a link to itself": func(path string) error { return os.Symlink(path, path) },
		"a link out":       func(path string) error { return os.Symlink(outside, path) },
		"another link out": func(path string) error { return os.Symlink(strings.Repeat("../", 30)+outside, path) },
		"a link by /proc":  func(path string) error { return os.Symlink("/proc/self/root"+outside, path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, 0)
			path := filepath.Join(dir, "etc/resolv.conf")
			must(t, os.Remove(path))
			if err := put(path); err != nil {
				t.Skip(err)
			}
			r := container(t, dir, 0)
			if text, err := r.Read("etc/resolv.conf", 100); err == nil {
				t.Errorf("it has %q", text)
			}
			if err := r.Write("etc/resolv.conf", []byte("x")); err == nil {
				t.Error("it was written")
			}
		})
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "secret" {
		t.Errorf("the file outside has %q, %v", text, err)
	}
}

// The root of a container with a user namespace cannot make us read or write files that
// are mounted there and do not belong to the container.
func TestRightsOfTheContainersRoot(t *testing.T) {
	dir := tree(t, guests)
	shadow := filepath.Join(dir, "mounted")
	must(t, os.WriteFile(shadow, []byte("secret"), 0o640)) // the host's root's
	must(t, os.Remove(filepath.Join(dir, "etc/resolv.conf")))
	must(t, os.Symlink("/mounted", filepath.Join(dir, "etc/resolv.conf")))
	r := container(t, dir, guests)
	if text, err := r.Read("etc/resolv.conf", 100); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("it has %q, %v", text, err)
	}
	if err := r.Write("etc/resolv.conf", nil); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("it was written: %v", err)
	}
	if text, err := os.ReadFile(shadow); err != nil || string(text) != "secret" {
		t.Errorf("the file has %q, %v", text, err)
	}
	// The caller's ids are unchanged.
	if err := os.WriteFile(shadow, []byte("changed"), 0); err != nil {
		t.Error(err)
	}
}

func TestGone(t *testing.T) {
	here, err := netns.Current()
	must(t, err)
	defer here.Close()
	cmd := exec.Command("true")
	must(t, cmd.Run())
	for _, pid := range []int{cmd.Process.Pid, 0, -1, 1 << 30} {
		if r, err := Of(pid, here); !errors.Is(err, ErrGone) {
			t.Errorf("%d: %v, %v", pid, r, err)
		}
	}
	if other, err := netns.New("other"); err == nil {
		defer other.Close()
		if r, err := Of(os.Getpid(), other); !errors.Is(err, ErrGone) {
			t.Errorf("in another network: %v, %v", r, err)
		}
	}
}

func FuzzOutside(f *testing.F) {
	for _, text := range []string{"         0          0 4294967295\n", "0 100000 65536\n", "1000 0 1\n0 5 1\n", "0 5 0\n", "0 -1 1", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if id, ok := outside(text); ok && (id < 0 || id > 1<<32-1) {
			t.Errorf("%q: %d", text, id)
		}
	})
}
