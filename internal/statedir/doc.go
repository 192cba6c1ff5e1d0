// Package statedir manages the directory in which cleat keeps its state: JSON files that a
// person can read, one file per object, shared by processes through locks.
//
// # Theory of operation
//
// A Dir has two trees. Files below Path survive a restart of the machine. Files below
// RunPath describe kernel state, such as links and rules, that a restart removes. They are
// in a directory named after the kernel's boot id; Prepare removes those of earlier boots.
//
// WriteFile and WriteJSON write a temporary file, sync it and rename it, so a reader finds
// either the old or the new content, even after a power failure. Lock waits for an
// exclusive flock(2) on a directory. The kernel releases it when the process ends, however
// it ends.
//
// Whatever the files say is done with the program's privileges. Open therefore rejects a
// directory that other users can change: the directory and every directory above it must
// belong to root or to the caller's user. Only a directory further up may be writable by
// others, and only if it has the sticky bit, such as /tmp, where nobody can rename the
// files of another user.
//
// # Limits
//
// Access control lists are ignored. In a user namespace, files of unmapped users, usually
// including root, all appear to belong to the overflow user, so directories above the state
// directory may belong to that user.
//
// Sources: flock(2), path_resolution(7), rename(2), unlink(2) (EPERM), user_namespaces(7).
//
//	dir, err := statedir.Open("")
//	if err != nil {
//		return err
//	}
//	if err := dir.Make(); err != nil {
//		return err
//	}
//	unlock, err := statedir.Lock(ctx, dir.Path())
//	if err != nil {
//		return err
//	}
//	defer unlock()
//	return statedir.WriteJSON(dir.Path("networks", "lan.json"), network)
package statedir
