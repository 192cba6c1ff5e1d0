package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// layout is part of the names of cache entries: raise it when what an entry
// holds changes, so that older ones are not mistaken for it.
const layout = "1"

// Suites are the Debian suites whose kernels the vm tier is about: bookworm has
// 6.1, trixie 6.12.
var Suites = []string{"bookworm", "trixie"}

// Kernel is a kernel in the cache.
type Kernel struct {
	Suite   string // Debian suite, e.g. "bookworm"
	Release string // what uname -r says, e.g. "6.1.0-50-amd64"
	Image   string // path of the uncompressed vmlinux
	Config  string // path of its build configuration
	Modules string // path of the directory with its modules (lib/modules/RELEASE)
}

// Version is the first two numbers of the release; 0, 0 if it has none.
func (k Kernel) Version() (major, minor int) {
	parts := strings.SplitN(k.Release, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	major, _ = strconv.Atoi(parts[0])
	minor, _ = strconv.Atoi(parts[1])
	return major, minor
}

// AtLeast says whether the kernel is of that version or newer.
func (k Kernel) AtLeast(major, minor int) bool {
	a, b := k.Version()
	return a > major || a == major && b >= minor
}

// FetchKernel returns the kernel of a suite, from the cache or else from the
// Debian mirror (some 100 MB). It is safe for concurrent use, in one process or
// several. The error is an ErrUnavailable where the machine can't have it.
func FetchKernel(ctx context.Context, cache, suite string) (Kernel, error) {
	dir, err := entry(ctx, cache, "kernel-"+suite+"-"+layout, func(dir, scraps string) error {
		return fillKernel(ctx, suite, dir, scraps)
	})
	if err != nil {
		return Kernel{}, fmt.Errorf("fetch kernel of %s: %w", suite, err)
	}
	releases, err := filepath.Glob(filepath.Join(dir, "lib/modules/*"))
	if err != nil || len(releases) != 1 {
		return Kernel{}, fmt.Errorf("read cache entry %s: it holds %d kernels; remove it", dir, len(releases))
	}
	return Kernel{
		Suite:   suite,
		Release: filepath.Base(releases[0]),
		Image:   filepath.Join(dir, "vmlinux"),
		Config:  filepath.Join(dir, "config"),
		Modules: releases[0],
	}, nil
}

// kernelPackage matches the packages that a kernel is made of. Newer suites
// split the image from the modules.
var kernelPackage = regexp.MustCompile(`^linux-(image|binary|modules|base)-\d`)

// fillKernel fetches the newest kernel of a suite into a cache entry.
func fillKernel(ctx context.Context, suite, dir, scraps string) error {
	a, err := openSuite(ctx, scraps, suite)
	if err != nil {
		return err
	}
	var pkgs []string
	next := []string{"linux-image-amd64"}
	for len(next) > 0 {
		deps, err := a.depends(ctx, next[0])
		if err != nil {
			return err
		}
		next = next[1:]
		for _, d := range deps {
			if kernelPackage.MatchString(d) && !slices.Contains(pkgs, d) {
				pkgs = append(pkgs, d)
				next = append(next, d)
			}
		}
	}
	debs, err := a.download(ctx, pkgs)
	if err != nil {
		return err
	}
	tree := filepath.Join(scraps, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	if err := unpack(ctx, debs, tree); err != nil {
		return err
	}
	return keepKernel(ctx, tree, dir)
}

// openSuite opens the archive of a suite at the machine's own Debian mirror.
func openSuite(ctx context.Context, scraps, suite string) (*archive, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	uris, err := mirrors("/etc/apt")
	if err != nil {
		return nil, fmt.Errorf("read apt configuration: %w", err)
	}
	return openArchive(ctx, filepath.Join(scraps, "apt"), suite, uris)
}

// keepKernel moves what is wanted of an unpacked kernel into dir.
func keepKernel(ctx context.Context, tree, dir string) error {
	from, release, err := findModules(tree)
	if err != nil {
		return err
	}
	image, err := readKernelFile(tree, from, "vmlinuz", release)
	if err != nil {
		return err
	}
	config, err := readKernelFile(tree, from, "config", release)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config"), config, 0o644); err != nil {
		return err
	}
	vmlinux, err := extractVmlinux(ctx, image)
	if err != nil {
		return fmt.Errorf("take apart image of kernel %s: %w", release, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "vmlinux"), vmlinux, 0o644); err != nil {
		return err
	}
	to := filepath.Join(dir, "lib/modules", release)
	if err := keepModules(from, to); err != nil {
		return err
	}
	if err := decompressModules(ctx, to); err != nil {
		return err
	}
	_, err = run(ctx, dir, "depmod", "-b", dir, release)
	return err
}

// readKernelFile reads a file that older packages have in boot, with the release
// in its name, and newer ones beside the modules.
func readKernelFile(tree, modules, name, release string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(tree, "boot", name+"-"+release))
	if errors.Is(err, fs.ErrNotExist) {
		b, err = os.ReadFile(filepath.Join(modules, name))
	}
	if err != nil {
		return nil, fmt.Errorf("find %s of kernel %s: %w", name, release, err)
	}
	return b, nil
}

// findModules finds lib/modules/RELEASE, which newer packages have below usr.
func findModules(tree string) (dir, release string, err error) {
	var found []string
	for _, lib := range []string{"lib", "usr/lib"} {
		dirs, err := filepath.Glob(filepath.Join(tree, lib, "modules", "*", "kernel"))
		if err != nil {
			return "", "", err
		}
		found = append(found, dirs...)
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("find modules in packages: %d kernels, want 1", len(found))
	}
	dir = filepath.Dir(found[0])
	return dir, filepath.Base(dir), nil
}

// keptModules are the parts of the module tree that networks are made of;
// droppedModules, the drivers of hardware among them.
var (
	keptModules    = []string{"arch", "crypto", "lib", "net", "drivers/net"}
	droppedModules = []string{"drivers/net/ethernet", "drivers/net/wireless", "arch/x86/kvm"}
)

// keepModules moves what is kept of a module tree from one directory to
// another, with the lists that depmod reads.
func keepModules(from, to string) error {
	for _, d := range droppedModules {
		if err := os.RemoveAll(filepath.Join(from, "kernel", d)); err != nil {
			return err
		}
	}
	keep := []string{"modules.order", "modules.builtin", "modules.builtin.modinfo"}
	for _, k := range keptModules {
		keep = append(keep, filepath.Join("kernel", k))
	}
	for _, k := range keep {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, k)), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(from, k), filepath.Join(to, k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// decompressModules decompresses all modules below dir in place: busybox's
// modprobe and older kernels take plain ones only.
func decompressModules(ctx context.Context, dir string) error {
	bySuffix := map[string][]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			bySuffix[filepath.Ext(p)] = append(bySuffix[filepath.Ext(p)], p)
		}
		return err
	})
	if err != nil {
		return err
	}
	for suffix, command := range map[string][]string{".xz": {"xz", "-dq"}, ".zst": {"zstd", "-dq", "--rm"}} {
		for files := range slices.Chunk(bySuffix[suffix], 500) {
			if _, err := run(ctx, dir, command[0], slices.Concat(command[1:], []string{"--"}, files)...); err != nil {
				return fmt.Errorf("decompress modules: %w", err)
			}
		}
	}
	return nil
}
