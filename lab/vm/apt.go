package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"cleat/internal/program"
)

// ErrUnavailable: the vm tier can't run here for a reason outside the program. A program
// or a keyring is missing, apt knows no Debian mirror, or the mirror can't be reached.
var ErrUnavailable = errors.New("vm tier unavailable")

// keyring holds the keys of Debian's archive (package debian-archive-keyring).
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// requiredPrograms are the programs that this package runs, with their Debian packages.
var requiredPrograms = []struct{ program, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"apt-get", "apt"},
	{"apt-cache", "apt"},
	{"dpkg-deb", "dpkg"},
	{"gpgv", "gpgv"},
	{"depmod", "kmod"},
	{"xz", "xz-utils"},
	{"zstd", "zstd"},
}

// Check reports whether the vm tier can run on this machine. The error is an
// ErrUnavailable that lists missing programs and the packages to install.
func Check() error {
	var missing, pkgs []string
	for _, n := range requiredPrograms {
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
	return runOn(ctx, nil, dir, name, args...)
}

// runOn is run with standard input.
func runOn(ctx context.Context, stdin io.Reader, dir, name string, args ...string) ([]byte, error) {
	var out, diag bytes.Buffer
	cmd := program.CommandContext(ctx, name, args...)
	cmd.Stdin = stdin
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &diag
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LANG=C")
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // not "signal: killed"
		}
		return nil, fmt.Errorf("run %s: %w: %s", name, err, tail(diag.Bytes(), 2000))
	}
	return out.Bytes(), nil
}

// tail returns the end of b, at most n bytes, for error messages.
func tail(b []byte, n int) string {
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return strings.TrimSpace(string(b))
}

// archive is one suite of the Debian archive, with apt state of its own. It reads none of
// the machine's package lists and installs nothing.
type archive struct {
	dir  string // of the apt state; the caller removes it
	conf string
}

// openArchive downloads the package list of a suite from the first of uris that has it
// with a valid signature.
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
		filepath.Join(dir, "status"): "", // no package is installed; apt makes dpkg's locks beside the file
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
		failed = errors.Join(failed, fmt.Errorf("fetch package list of %s from %s: %w", suite, uri, asUnavailable(err)))
	}
	return nil, failed
}

// aptConf is read after the machine's own apt configuration: proxies and credentials stay
// in force, directories and hooks are replaced.
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

// unreachableMessage matches errors of apt's methods that got no answer at all.
var unreachableMessage = regexp.MustCompile(`Could not resolve|Could not connect|Unable to connect|Cannot initiate the connection|Temporary failure|timed out|Network is unreachable`)

// asUnavailable makes an ErrUnavailable of a failure to reach a mirror. It returns other
// errors, such as a bad signature, as they are.
func asUnavailable(err error) error {
	if unreachableMessage.MatchString(err.Error()) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// dependency matches the first alternative of each dependency in a control field.
var dependency = regexp.MustCompile(`(?:^|,)\s*([a-z0-9][a-z0-9.+-]+)`)

// depends returns the direct dependencies of a package.
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

// download downloads exactly the named packages and returns the paths of their files.
func (a *archive) download(ctx context.Context, pkgs []string) ([]string, error) {
	debs := filepath.Join(a.dir, "debs")
	args := append([]string{"-c", a.conf, "-q", "download"}, pkgs...)
	if _, err := run(ctx, debs, "apt-get", args...); err != nil {
		return nil, fmt.Errorf("download %s: %w", strings.Join(pkgs, " "), asUnavailable(err))
	}
	return filepath.Glob(filepath.Join(debs, "*.deb"))
}

// downloadAll downloads packages with all dependencies.
func (a *archive) downloadAll(ctx context.Context, pkgs []string) ([]string, error) {
	args := append([]string{"-c", a.conf, "-q", "-y", "--download-only", "install"}, pkgs...)
	if _, err := run(ctx, a.dir, "apt-get", args...); err != nil {
		return nil, fmt.Errorf("download %s: %w", strings.Join(pkgs, " "), asUnavailable(err))
	}
	return filepath.Glob(filepath.Join(a.dir, "cache", "archives", "*.deb"))
}

// unpack unpacks package files over each other into a new directory in scraps.
func unpack(ctx context.Context, debs []string, scraps string) (tree string, err error) {
	if len(debs) == 0 {
		return "", errors.New("unpack packages: none were downloaded")
	}
	tree = filepath.Join(scraps, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return "", err
	}
	for _, deb := range debs {
		if _, err := run(ctx, tree, "dpkg-deb", "-x", deb, tree); err != nil {
			return "", fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
	}
	return tree, nil
}
