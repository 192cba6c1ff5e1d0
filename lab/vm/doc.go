// Package vm boots Debian's kernels in QEMU and runs one program in each. This is the vm
// tier, which tests features that the machine's own kernel was built without.
//
// # Theory of operation
//
// FetchKernel and FetchUserland fill a cache with one directory a suite. Packages are
// downloaded by the machine's own apt-get, with state of its own, from the Debian mirror
// in the machine's apt configuration. So signatures are checked, proxies are used, and
// nothing is installed. Of a kernel package the cache keeps the uncompressed vmlinux,
// which boots faster under emulation than the bzImage, and the modules for networking,
// decompressed and indexed by depmod. Of the userland it keeps busybox, Open vSwitch, ip,
// bridge and nft with their libraries.
//
// An entry is built in a temporary directory and renamed when it is complete, under a
// lock shared by concurrent runs. So an existing entry is complete. It is used as long as
// it exists, without any network. Remove the cache directory to get newer kernels.
//
// Boot writes an initramfs (cpio "newc") with the userland, the modules, the caller's
// files and an init script into an unnamed file, and starts QEMU with it. The guest has
// two serial ports: the first has the kernel's log, the second the program's output. The
// script ends by printing a line with the exit status and writing the same status to
// QEMU's isa-debug-exit device. Both must arrive and agree; otherwise the guest has died,
// which is an error. QEMU gets SIGKILL when its parent dies (by a parent death signal,
// for which the starting goroutine keeps its thread), so even kill -9 leaves nothing
// behind.
//
// # Limits
//
// x86-64 only, one emulated processor, no network device that leads outside, and no disk.
// Emulation is many times slower than the processor, so only features are tested here,
// never speed. It needs no privilege.
//
// Sources: Documentation/arch/x86/boot.rst (boot protocol 2.08 and later),
// Documentation/driver-api/early-userspace/buffer-format.rst (newc), apt.conf(5),
// sources.list(5), modules.dep(5), qemu-system-x86_64(1).
package vm
