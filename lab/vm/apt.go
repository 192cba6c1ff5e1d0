package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"cleat/internal/program"
)

// ErrUnavailable says that the vm tier can't be had here for a reason that lies
// outside the program: a program or keyring is missing, apt knows no Debian
// mirror, or the mirror can't be reached.
var ErrUnavailable = errors.New("vm tier unavailable")

// keyring holds the keys of Debian's archive (package debian-archive-keyring).
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// needs are the programs that this package runs, with the Debian packages that
// have them.
var needs = []struct{ program, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"apt-get", "apt"},
	{"apt-cache", "apt"},
	{"dpkg-deb", "dpkg"},
	{"gpgv", "gpgv"},
	{"depmod", "kmod"},
	{"xz", "xz-utils"},
	{"zstd", "zstd"},
}

// Check says what this machine lacks for the vm tier, as an ErrUnavailable that
// names programs and the packages to install; nil when nothing is missing.
func Check() error {
	var missing, pkgs []string
	for _, n := range needs {
		if _, err := program.Find(n.program); err != nil {
			missing = append(missing, n.program)
			pkgs = append(pkgs, n.pkg)
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		missing = append(missing, keyring)
		pkgs = append(pkgs, "debian-archive-keyring")
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(pkgs)
	return fmt.Errorf("%w: missing %s (apt-get install %s)", ErrUnavailable,
		strings.Join(missing, ", "), strings.Join(slices.Compact(pkgs), " "))
}

// run runs a program in the C locale and returns its standard output.
func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	var out, diag bytes.Buffer
	cmd := program.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &diag
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LANG=C")
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // rather than that the program was killed
		}
		return nil, fmt.Errorf("run %s: %w: %s", name, err, tail(diag.Bytes(), 2000))
	}
	return out.Bytes(), nil
}

// tail is the end of b, at most n bytes, for error messages.
func tail(b []byte, n int) string {
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return strings.TrimSpace(string(b))
}

// archive is one suite of the Debian archive seen through a private apt state:
// it reads none of the machine's lists and installs nothing.
type archive struct {
	dir  string // of the state; the caller removes it
	conf string
}

// openArchive fetches the package list of a suite from the first of uris that
// carries it with a valid signature.
func openArchive(ctx context.Context, dir, suite string, uris []string) (*archive, error) {
	if len(uris) == 0 {
		return nil, fmt.Errorf("%w: the apt configuration names no Debian archive", ErrUnavailable)
	}
	a := &archive{dir: dir, conf: filepath.Join(dir, "apt.conf")}
	for _, sub := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	for name, text := range map[string]string{
		a.conf:                       aptConf(dir),
		filepath.Join(dir, "status"): "", // nothing is installed; apt makes dpkg's locks beside it
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	var failed error
	for _, uri := range uris {
		line := fmt.Sprintf("deb [arch=amd64 signed-by=%s] %s %s main\n", keyring, uri, suite)
		if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(line), 0o644); err != nil {
			return nil, err
		}
		_, err := run(ctx, dir, "apt-get", "-c", a.conf, "-q", "update")
		if err == nil {
			return a, nil
		}
		failed = errors.Join(failed, fmt.Errorf("fetch package list of %s from %s: %w", suite, uri, unreachable(err)))
	}
	return nil, failed
}

// aptConf is read after the machine's own apt configuration, so proxies and
// credentials stay in force, while places and hooks are replaced.
func aptConf(dir string) string {
	return fmt.Sprintf(`#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear APT::Architectures;
APT::Architecture "amd64";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
APT::Install-Recommends "false";
Dir::State "%[1]s";
Dir::State::Lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Cache::archives "%[1]s/cache/archives";
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none";
Acquire::PDiffs "false";
Acquire::Retries "3";
Acquire::Check-Valid-Until "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
`, dir)
}

// noRoute are the words with which apt's methods say that they got no answer,
// as opposed to a wrong one.
var noRoute = regexp.MustCompile(`Could not resolve|Could not connect|Unable to connect|Cannot initiate the connection|Temporary failure|timed out|Network is unreachable`)

// unreachable makes an ErrUnavailable of a failure to reach a mirror and leaves
// every other error (a bad signature, say) as it is.
func unreachable(err error) error {
	if noRoute.MatchString(err.Error()) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// dependency finds the first alternative of each dependency in a control field.
var dependency = regexp.MustCompile(`(?:^|,)\s*([a-z0-9][a-z0-9.+-]+)`)

// depends are the packages that a package depends on directly.
func (a *archive) depends(ctx context.Context, pkg string) ([]string, error) {
	out, err := run(ctx, a.dir, "apt-cache", "-c", a.conf, "--no-all-versions", "show", pkg)
	if err != nil {
		return nil, fmt.Errorf("look up package %s: %w", pkg, err)
	}
	var deps []string
	for line := range strings.Lines(string(out)) {
		field, value, _ := strings.Cut(line, ":")
		if field != "Depends" && field != "Pre-Depends" {
			continue
		}
		for _, m := range dependency.FindAllStringSubmatch(value, -1) {
			deps = append(deps, m[1])
		}
	}
	return deps, nil
}

// download fetches exactly the packages named and returns the paths of their
// files.
func (a *archive) download(ctx context.Context, pkgs []string) ([]string, error) {
	debs := filepath.Join(a.dir, "debs")
	args := append([]string{"-c", a.conf, "-q", "download"}, pkgs...)
	if _, err := run(ctx, debs, "apt-get", args...); err != nil {
		return nil, fmt.Errorf("download %s: %w", strings.Join(pkgs, " "), unreachable(err))
	}
	return filepath.Glob(filepath.Join(debs, "*.deb"))
}

// downloadAll fetches packages and everything they depend on.
func (a *archive) downloadAll(ctx context.Context, pkgs []string) ([]string, error) {
	args := append([]string{"-c", a.conf, "-q", "-y", "--download-only", "install"}, pkgs...)
	if _, err := run(ctx, a.dir, "apt-get", args...); err != nil {
		return nil, fmt.Errorf("download %s: %w", strings.Join(pkgs, " "), unreachable(err))
	}
	return filepath.Glob(filepath.Join(a.dir, "cache", "archives", "*.deb"))
}

// unpack unpacks package files over each other into root.
func unpack(ctx context.Context, debs []string, root string) error {
	if len(debs) == 0 {
		return errors.New("unpack packages: none were downloaded")
	}
	for _, deb := range debs {
		if _, err := run(ctx, root, "dpkg-deb", "-x", deb, root); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
	}
	return nil
}
