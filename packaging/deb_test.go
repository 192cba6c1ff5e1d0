package packaging_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program returns the path of a program of administrators. It skips the test if the machine has none.
func program(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	t.Skipf("no program %s", name)
	return ""
}

// output runs a command, and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program(t, name), args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// debFile returns the path of the package.
func debFile(t *testing.T) string {
	t.Helper()
	path := os.Getenv("CLEAT_DEB")
	if path == "" {
		t.Skip("CLEAT_DEB names no package; `make test-deb` builds and tests one")
	}
	return path
}

// programs are those of the package.
var programs = []string{"/usr/bin/cleat", "/usr/bin/cleat-node", "/usr/lib/cni/cleat-cni"}

// TestContents checks where the files of the package are, and that manual, completions, unit and
// scripts can be read by the programs that they are for.
func TestContents(t *testing.T) {
	t.Parallel()
	deb := debFile(t)
	files := map[string]bool{}
	for line := range strings.Lines(output(t, "dpkg-deb", "--contents", deb)) {
		words := strings.Fields(line)
		name := strings.TrimPrefix(words[5], ".")
		files[name] = true
		if words[1] != "root/root" {
			t.Errorf("%s belongs to %s", name, words[1])
		}
		if mode := words[0]; mode != "drwxr-xr-x" && mode != "-rw-r--r--" && !(mode == "-rwxr-xr-x" && slices.Contains(programs, name)) {
			t.Errorf("%s has mode %s", name, mode)
		}
		if !strings.HasPrefix(name, "/usr/") && name != "/" || strings.HasPrefix(name, "/usr/local") {
			t.Errorf("%s is outside of /usr, or in /usr/local", name)
		}
	}
	const unit = "/usr/lib/systemd/system/cleat-keep.service"
	for _, name := range append(programs, unit, "/usr/lib/systemd/system/cleat-keep.socket", "/usr/lib/systemd/system/cleat-node.service", "/usr/share/man/man1/cleat-node-up.1.gz", "/usr/share/cleat/10-cleat.conflist", "/usr/share/man/man1/cleat.1.gz", "/usr/share/man/man1/cleat-net-create.1.gz",
		"/usr/share/bash-completion/completions/cleat", "/usr/share/zsh/vendor-completions/_cleat", "/usr/share/fish/vendor_completions.d/cleat.fish",
		"/usr/share/doc/cleat/copyright", "/usr/share/doc/cleat/changelog.gz", "/usr/share/doc/cleat/changelog.Debian.gz",
		"/usr/share/doc/cleat/third-party-licenses.gz", "/usr/share/doc/cleat/README.md", "/usr/share/doc/cleat/doc/networks.md") {
		if !files[name] {
			t.Errorf("%s is missing", name)
		}
	}
	root := t.TempDir()
	output(t, "dpkg-deb", "--extract", deb, root)
	control := t.TempDir()
	output(t, "dpkg-deb", "--control", deb, control)
	// systemd-analyze wants to see the program.
	text, err := os.ReadFile(root + unit)
	must(t, err)
	own := strings.Replace(string(text), "ExecStart=/usr/bin/cleat keep ", "ExecStart="+root+"/usr/bin/cleat keep ", 1)
	must(t, os.WriteFile(control+"/cleat-keep.service", []byte(own), 0o644))
	for _, tt := range []struct {
		what, program string
		args          []string
	}{
		{"manual", "man", []string{"-M", root + "/usr/share/man", "-w", "cleat-net-create"}},
		{"completion of bash", "bash", []string{"-n", root + "/usr/share/bash-completion/completions/cleat"}},
		{"completion of zsh", "zsh", []string{"-n", root + "/usr/share/zsh/vendor-completions/_cleat"}},
		{"completion of fish", "fish", []string{"-n", root + "/usr/share/fish/vendor_completions.d/cleat.fish"}},
		{"unit", "systemd-analyze", []string{"verify", "--man=no", control + "/cleat-keep.service"}},
		{"postinst", "dash", []string{"-n", control + "/postinst"}},
		{"prerm", "dash", []string{"-n", control + "/prerm"}},
		{"postrm", "dash", []string{"-n", control + "/postrm"}},
		// The maintainer's address may be at localhost.
		{"package", "lintian", []string{"--fail-on=error,warning", "--suppress-tags=bogus-mail-host,bogus-mail-host-in-debian-changelog", deb}},
		{"scripts", "shellcheck", []string{control + "/postinst", control + "/prerm", control + "/postrm"}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			if out := output(t, tt.program, tt.args...); tt.what == "unit" && out != "" {
				t.Errorf("systemd-analyze prints\n%s", out)
			}
		})
	}
}

// TestInstall installs the package in a new Debian without systemd, in namespaces of its own, uses
// it, installs it again as an upgrade does, removes it, brings back what was there, and purges it.
// Then the new Debian has the same files as before.
func TestInstall(t *testing.T) {
	t.Parallel()
	deb := debFile(t)
	if os.Geteuid() != 0 {
		t.Skip("making a Debian needs root")
	}
	tree := newDebian(t)
	before := list(t, tree)
	script, err := filepath.Abs("testdata/install.sh")
	must(t, err)
	cmd := exec.Command(program(t, "unshare"), "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", `set -e
mount -t proc none "$1/proc"
mount -t sysfs none "$1/sys"
mount -t tmpfs none "$1/mnt"
cp "$2" "$1/mnt/cleat.deb"
cp "$3" "$1/mnt/install.sh"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$1" sh /mnt/install.sh`, "sh", tree, deb, script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	told := strings.Split(string(out), "\n")
	at := 0
	for _, want := range []string{
		"install: ok installed", "install: the unit is enabled", "install: no process", "install: cleat 0|install: cleat v|install: cleat (",
		"use: connected", "use: a keeper runs", `use: {"cniVersion":"1.1.0","supportedVersions":["0.3.0"`,
		"upgrade: ok installed", "upgrade: still connected", "upgrade: a keeper runs",
		"remove: ok config-files", "remove: no device", "remove: no process", "remove: the network is still wanted",
		"install again: ok installed", "install again: the network is back",
		"purge: not installed", "purge: no device", "purge: no process",
	} {
		i := slices.IndexFunc(told[at:], func(line string) bool {
			return slices.ContainsFunc(strings.Split(want, "|"), func(w string) bool { return strings.HasPrefix(line, w) })
		})
		if i < 0 {
			t.Errorf("%q is missing, or too early", want)
			continue
		}
		at += i + 1
	}
	if diff := cmp.Diff(before, list(t, tree)); diff != "" {
		t.Errorf("files before the package was installed, and after it was purged (-before +after):\n%s", diff)
	}
}

// newDebian makes a tree with Debian's essential packages, of the machine's release. It skips the test
// without an archive of Debian.
func newDebian(t *testing.T) string {
	t.Helper()
	mmdebstrap := program(t, "mmdebstrap")
	release, err := os.ReadFile("/etc/os-release")
	must(t, err)
	m := regexp.MustCompile(`(?m)^VERSION_CODENAME=(\w+)$`).FindSubmatch(release)
	if m == nil {
		t.Skip("the machine runs no release of Debian")
	}
	tree := filepath.Join(t.TempDir(), "debian")
	out, err := exec.Command(mmdebstrap, "--mode=root", "--variant=essential", string(m[1]), tree).CombinedOutput()
	if err != nil {
		t.Skipf("no Debian to install the package in: mmdebstrap: %v\n%s", err, out)
	}
	must(t, os.WriteFile(tree+"/etc/dpkg/dpkg.cfg.d/quick", []byte("force-unsafe-io\n"), 0o644)) // no fsync
	return tree
}

// list returns the files in a tree with their modes, sizes and targets, without dpkg's log and lists of
// packages.
func list(t *testing.T, tree string) []string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, tree)
		if changes, _ := filepath.Match("/var/lib/dpkg/*", name); changes && !d.IsDir() || name == "/var/log/dpkg.log" || strings.HasPrefix(name, "/var/lib/dpkg/triggers/") {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %s", name, info.Mode())
		if info.Mode().IsRegular() {
			line += fmt.Sprintf(" %d bytes", info.Size())
		}
		if target, err := os.Readlink(path); err == nil {
			line += " → " + target
		}
		all = append(all, line)
		return nil
	}))
	return all
}
