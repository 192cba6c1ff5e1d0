// Package files reads and writes files of a running container as the container's own
// root would.
//
// # Theory of operation
//
// A Root is the root directory of a process, held open. Of takes it by way of
// /proc/PID/root and makes sure, by a descriptor of the process (pidfd_open(2)), that the
// process was in the expected network namespace before and is the same process after:
// process ids are given away again.
//
// All that is below is hostile. Paths are resolved below the root (openat2(2),
// RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS): no symbolic link leads out. A file is looked at
// by a handle that touches nothing (O_PATH) and opened only if it is a regular one, so
// neither FIFOs nor devices are opened. What is read is bounded.
//
// A container with a user namespace may have files mounted that its root must not read
// or write. So files are opened on a thread with the file system ids (setfsuid(2)) that
// the container's root has on the host, and without supplementary groups: that also
// takes CAP_DAC_OVERRIDE and its like from the thread.
//
// # Limits
//
// Linux 5.6 is needed (openat2). A file system that does not answer, which takes a
// container with CAP_SYS_ADMIN outside of a user namespace, holds a thread; the caller
// goes on after a while. Nothing here is atomic: a file may be a mount, which can't be
// replaced.
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
