package vm

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// userlandSuite is the suite of the guest's programs. Their interfaces to the kernel are
// stable, so one suite serves all kernels.
const userlandSuite = "bookworm"

// userlandPackages are downloaded with all dependencies (some 30 MB). Of these
// userlandPrograms and their libraries are kept.
var userlandPackages = []string{"busybox-static", "openvswitch-switch", "iproute2", "nftables"}

// userlandVersion is for the userland what cacheVersion is for kernels.
const userlandVersion = "2"

// userlandPrograms are the programs in the guest, with their paths in the packages and in
// the guest. There are several paths in the packages if the first may be a link that only
// an installed package has.
var userlandPrograms = []struct {
	to   string
	from []string
}{
	{"bin/busybox", []string{"bin/busybox", "usr/bin/busybox"}},
	{"usr/sbin/ovs-vswitchd", []string{"usr/lib/openvswitch-switch/ovs-vswitchd", "usr/sbin/ovs-vswitchd"}},
	{"usr/sbin/ovsdb-server", []string{"usr/sbin/ovsdb-server"}},
	{"usr/bin/ovs-vsctl", []string{"usr/bin/ovs-vsctl"}},
	{"usr/bin/ovs-ofctl", []string{"usr/bin/ovs-ofctl"}},
	{"usr/bin/ovs-dpctl", []string{"usr/bin/ovs-dpctl"}},
	{"usr/bin/ovs-appctl", []string{"usr/bin/ovs-appctl"}},
	{"usr/bin/ovsdb-tool", []string{"usr/bin/ovsdb-tool"}},
	{"usr/bin/ovsdb-client", []string{"usr/bin/ovsdb-client"}},
	// Outside of PATH, for tests that build on them: others take what is there for a reference.
	{"opt/ip", []string{"bin/ip", "usr/bin/ip"}},
	{"opt/bridge", []string{"sbin/bridge", "usr/sbin/bridge"}},
	{"opt/nft", []string{"usr/sbin/nft"}},
}

// userlandData are files that the programs read.
var userlandData = []string{"usr/share/openvswitch/vswitch.ovsschema"}

// guestLibs is where the guest's dynamic linker searches without a cache. The linker's
// own path is fixed by the ABI.
const guestLibs = "lib/x86_64-linux-gnu"

// FetchUserland returns a directory with the guest's root file system: busybox, Open
// vSwitch, ip, bridge and nft, with their libraries. The cache, concurrency and errors are as for FetchKernel.
func FetchUserland(ctx context.Context, cache string) (string, error) {
	dir, err := cacheEntry(ctx, cache, "userland-"+userlandSuite+"-"+userlandVersion, func(dir, scraps string) error {
		a, err := openSuite(ctx, scraps, userlandSuite)
		if err != nil {
			return err
		}
		debs, err := a.downloadAll(ctx, userlandPackages)
		if err != nil {
			return err
		}
		tree, err := unpack(ctx, debs, scraps)
		if err != nil {
			return err
		}
		return installUserland(tree, dir)
	})
	if err != nil {
		return "", fmt.Errorf("fetch userland: %w", err)
	}
	return dir, nil
}

// installUserland copies programs, their libraries, and data from an unpacked tree.
func installUserland(tree, dir string) error {
	for _, p := range userlandPrograms {
		if err := copyFirst(tree, p.from, filepath.Join(dir, p.to)); err != nil {
			return err
		}
		if err := installLibraries(tree, dir, filepath.Join(dir, p.to)); err != nil {
			return fmt.Errorf("find libraries of %s: %w", p.to, err)
		}
	}
	for _, d := range userlandData {
		if err := copyFirst(tree, []string{d}, filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	return nil
}

// installLibraries copies the interpreter and the libraries that an ELF file needs,
// directly and indirectly, unless they exist.
func installLibraries(tree, dir, file string) error {
	interp, needed, err := elfDependencies(file)
	if err != nil {
		return err
	}
	if interp != "" {
		to := filepath.Join(dir, interp)
		if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
			// The linker is a link in one package and a file in another.
			if err := copyFirst(tree, libraryPaths(filepath.Base(interp)), to); err != nil {
				return err
			}
		}
	}
	for _, lib := range needed {
		to := filepath.Join(dir, guestLibs, lib)
		if _, err := os.Stat(to); err == nil {
			continue
		}
		if err := copyFirst(tree, libraryPaths(lib), to); err != nil {
			return err
		}
		if err := installLibraries(tree, dir, to); err != nil {
			return err
		}
	}
	return nil
}

// libraryPaths returns the paths of a library in Debian's packages, before and after /lib
// became a link to /usr/lib.
func libraryPaths(lib string) []string {
	var out []string
	for _, d := range []string{guestLibs, "usr/" + guestLibs, "lib", "usr/lib", "lib64", "usr/lib64"} {
		out = append(out, filepath.Join(d, lib))
	}
	return out
}

// elfDependencies returns the interpreter and the DT_NEEDED names of an ELF file. A
// statically linked program or a library has no interpreter ("").
func elfDependencies(file string) (interp string, needed []string, err error) {
	f, err := elf.Open(file)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b, err := io.ReadAll(p.Open())
		if err != nil {
			return "", nil, fmt.Errorf("read interpreter: %w", err)
		}
		interp = strings.TrimRight(string(b), "\x00")
	}
	needed, err = f.ImportedLibraries()
	return interp, needed, err
}

// copyFirst copies the first of several paths of a tree that is a regular file, or a link
// to one inside the tree, with its mode.
func copyFirst(tree string, from []string, to string) error {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer root.Close()
	i := slices.IndexFunc(from, func(name string) bool {
		info, err := root.Stat(name)
		return err == nil && info.Mode().IsRegular()
	})
	if i < 0 {
		return fmt.Errorf("find %s in packages: %w", strings.Join(from, " or "), fs.ErrNotExist)
	}
	in, err := root.Open(from[i])
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return fmt.Errorf("copy %s: %w", from[i], err)
	}
	return out.Close()
}
