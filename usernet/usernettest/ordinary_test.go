package usernettest_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cleat/lab"
)

// The uid and gid of an ordinary user.
const ordinary = 1234

// ordinaryScript runs its arguments as an ordinary user who may open /dev/net/tun, as on
// usual distributions. The device node is in a mount namespace of the script. setpriv
// drops all groups and capabilities.
const ordinaryScript = `set -e
dir=$1; uid=$2; shift 2
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$dir/dev"
mknod -m 666 "$dir/dev/tun" c 10 200
mount --bind "$dir/dev/tun" /dev/net/tun
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --bounding-set=-all --no-new-privs "$@"`

// TestOrdinaryUser runs a part of the suite again with uid 1234, who owns the whole lab.
func TestOrdinaryUser(t *testing.T) {
	lab.Need(t)
	if testing.Short() {
		t.Skip("not with -short")
	}
	if os.Getenv("CLEAT_ORDINARY") != "" {
		t.Skip("this is the ordinary user's run")
	}
	for _, p := range []string{"unshare", "setpriv", "mknod"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
	if hostUID(t) != 0 {
		t.Skip("the whole run is by an ordinary user")
	}
	dir := publicDir(t)
	test := filepath.Join(dir, "test")
	copyFile(t, "/proc/self/exe", test)
	env := []string{"env", "CLEAT_ORDINARY=1", "TMPDIR=" + dir, "HOME=" + dir, "CLEAT_LAB="}
	for _, b := range []build{shipped, commands} {
		p := filepath.Join(dir, b.env)
		copyFile(t, b.program(t), p)
		env = append(env, b.env+"="+p)
	}
	if err := os.Mkdir(filepath.Join(dir, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := runOnHost(slices.Concat(
		[]string{"unshare", "--mount", "sh", "-c", ordinaryScript, "sh", dir, fmt.Sprint(ordinary)}, env,
		[]string{test, "-test.v", "-test.short", "-test.run", "^TestCleat$", "-cases", *ordinaryCases})...)
	t.Log(out)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "no lab") || !strings.Contains(out, "--- PASS: TestCleat") {
		t.Skip("an ordinary user can't make a lab here")
	}
}

// hostUID returns the host's uid of the lab's owner.
func hostUID(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	var inside, outside, count int
	if _, err := fmt.Sscan(string(b), &inside, &outside, &count); err != nil {
		t.Fatalf("parse %q: %v", b, err)
	}
	return outside
}

// publicDir returns a directory that every user may enter and write to.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ordinary")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// runOnHost runs a command in the host's namespaces, outside the lab.
func runOnHost(args ...string) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	p, err := lab.Host{}.Start(lab.Command{Args: args, Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		return "", err
	}
	out, err := io.ReadAll(r)
	return string(out), errors.Join(err, p.Wait())
}
