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
)

// cacheVersion is part of the names of cache entries of kernels. Increment it when the content
// of an entry changes, so that old entries are not used.
const cacheVersion = "1"

// Suites are the Debian suites whose kernels the vm tier tests: bookworm has 6.1, trixie
// 6.12.
var Suites = []string{"bookworm", "trixie"}

// Kernel is a kernel in the cache.
type Kernel struct {
	Release string // as uname -r prints it, e.g. "6.1.0-50-amd64"
	Image   string // path of the uncompressed vmlinux
	Config  string // path of its build configuration
	Modules string // path of the directory with its modules (lib/modules/RELEASE)
}

// Version returns the first two numbers of the release; 0, 0 if it has none.
func (k Kernel) Version() (major, minor int) {
	_, _ = fmt.Sscanf(k.Release, "%d.%d", &major, &minor)
	return major, minor
}

// AtLeast reports whether the kernel has that version or a newer one.
func (k Kernel) AtLeast(major, minor int) bool {
	a, b := k.Version()
	return a > major || a == major && b >= minor
}

// FetchKernel returns the kernel of a suite, from the cache or from the Debian mirror
// (some 100 MB). It is safe for concurrent use, in one process or several. The error
// wraps ErrUnavailable if the machine can't provide it.
func FetchKernel(ctx context.Context, cache, suite string) (Kernel, error) {
	dir, err := cacheEntry(ctx, cache, "kernel-"+suite+"-"+cacheVersion, func(dir, scraps string) error {
		return fillKernel(ctx, suite, dir, scraps)
	})
	if err != nil {
		return Kernel{}, fmt.Errorf("fetch kernel of %s: %w", suite, err)
	}
	releases, err := filepath.Glob(filepath.Join(dir, "lib/modules/*"))
	if err != nil || len(releases) != 1 {
		return Kernel{}, fmt.Errorf("read cache entry %s: %d kernels in it, want 1; remove the directory", dir, len(releases))
	}
	return Kernel{
		Release: filepath.Base(releases[0]),
		Image:   filepath.Join(dir, "vmlinux"),
		Config:  filepath.Join(dir, "config"),
		Modules: releases[0],
	}, nil
}

// kernelPackage matches the packages of a kernel. Newer suites have the image and the
// modules in separate packages.
var kernelPackage = regexp.MustCompile(`^linux-(image|binary|modules|base)-\d`)

// fillKernel downloads the newest kernel of a suite into a cache entry.
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
	tree, err := unpack(ctx, debs, scraps)
	if err != nil {
		return err
	}
	return installKernel(ctx, tree, dir)
}

// openSuite opens the archive of a suite at the machine's Debian mirror.
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

// installKernel moves the needed files of an unpacked kernel into dir.
func installKernel(ctx context.Context, tree, dir string) error {
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
		return fmt.Errorf("extract kernel %s from its image: %w", release, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "vmlinux"), vmlinux, 0o644); err != nil {
		return err
	}
	to := filepath.Join(dir, "lib/modules", release)
	if err := moveModules(from, to); err != nil {
		return err
	}
	if err := decompressModules(ctx, to); err != nil {
		return err
	}
	_, err = run(ctx, dir, "depmod", "-b", dir, release)
	return err
}

// readKernelFile reads a file of the kernel. Older packages have it in boot, with the
// release in its name, newer ones beside the modules.
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

// findModules finds lib/modules/RELEASE, which is below usr in newer packages.
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

// keptModuleDirs are the parts of the module tree that networks need; droppedModuleDirs
// are hardware drivers in them.
var (
	keptModuleDirs    = []string{"arch", "crypto", "lib", "net", "drivers/net"}
	droppedModuleDirs = []string{"drivers/net/ethernet", "drivers/net/wireless", "arch/x86/kvm"}
)

// moveModules moves the needed modules to another directory, with the lists that depmod
// reads.
func moveModules(from, to string) error {
	for _, d := range droppedModuleDirs {
		if err := os.RemoveAll(filepath.Join(from, "kernel", d)); err != nil {
			return err
		}
	}
	keep := []string{"modules.order", "modules.builtin", "modules.builtin.modinfo"}
	for _, k := range keptModuleDirs {
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

// decompressModules decompresses all modules below dir in place: busybox's modprobe and
// older kernels require that.
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
