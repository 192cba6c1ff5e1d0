// Package files reads and writes files of a running container with the rights of the
// container's own root.
//
// # Theory of operation
//
// A Root is the root directory of a process, held open. Of opens it through
// /proc/PID/root. With a descriptor of the process (pidfd_open(2)) it ensures that the
// process was in the expected network namespace before, and is the same process
// afterwards: process ids are reused.
//
// Everything below that directory is hostile. Paths are resolved below the root
// (openat2(2), RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS), so no symbolic link leads out. A
// file is inspected through a handle without side effects (O_PATH) and opened only if it
// is a regular file, so neither FIFOs nor devices are opened. The size of what is read is
// bounded.
//
// A container with a user namespace may have files mounted that its root may not read or
// write. Files are therefore opened on a thread with the file system ids (setfsuid(2))
// that the container's root has on the host, and without supplementary groups. This also
// removes CAP_DAC_OVERRIDE and similar capabilities from the thread.
//
// # Limits
//
// Linux 5.6 is needed (openat2). A file system that does not respond, which requires a
// container with CAP_SYS_ADMIN outside a user namespace, blocks a thread; the caller
// continues after a timeout. Writes are not atomic: a file may be a mount, which cannot
// be replaced.
//
// Sources: openat2(2), setfsuid(2), user_namespaces(7), fs/namei.c.
//
//	root, err := files.Of(pid, ns)
//	if err != nil {
//		return err
//	}
//	defer root.Close()
//	text, err := root.Read("etc/resolv.conf", 64<<10)
package files
