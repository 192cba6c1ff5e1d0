// Package vm boots Debian's kernels in QEMU and runs one program in each: the
// vm tier, for what the kernel at hand was built without.
//
// # Theory of operation
//
// FetchKernel and FetchUserland fill a cache, one directory a suite. Packages
// come through the machine's own apt-get, pointed at a private state and at the
// Debian mirror that the machine's apt configuration names, so that signatures
// are checked and proxies obeyed and nothing is installed. Of a kernel package
// the cache keeps the uncompressed vmlinux (it boots faster than the bzImage
// around it under software emulation) and the modules that have to do with
// networks, decompressed and indexed by depmod. Of the userland it keeps
// busybox and Open vSwitch with the libraries they load.
//
// An entry is built in a directory beside its final place and renamed when it
// is whole, under a lock that concurrent runs share, so an entry that exists is
// complete. It is used for as long as it exists: a filled cache needs no
// network. Remove the cache directory to get newer kernels.
//
// Boot writes an initramfs (cpio "newc") of the userland, the modules, the
// caller's files and an init script into a file without a name, and starts QEMU
// on it. The guest has two serial ports: the kernel's log is on the first, the
// program's output on the second. The script ends by printing a last line that
// carries the exit status and by writing the same status to QEMU's
// isa-debug-exit device. Both must arrive and agree; anything else is a guest
// that died, and an error. QEMU gets SIGKILL when its starter dies (a parent
// death signal, which is why the starting goroutine keeps its thread), so
// nothing is left behind by a kill -9 either.
//
// # Limits
//
// x86-64 only, one emulated processor, no network device that leads outside and
// no disk. Emulation is many times slower than the processor: what runs
// here is a test of features, never of speed. No privilege is needed.
//
// Sources: Documentation/arch/x86/boot.rst (boot protocol 2.08 and later),
// Documentation/driver-api/early-userspace/buffer-format.rst (newc),
// apt.conf(5), sources.list(5), modules.dep(5), qemu-system-x86_64(1).
package vm
