// Package statedir checks that a directory is safe to keep files in that a program
// believes later: what is in them is done with the program's rights.
//
// # Theory of operation
//
// A directory is safe if nobody but root and the caller's user can put another one in its
// place, or files into it. So it and each directory above it must belong to root or to the
// caller's user. Others may write only to one above it that has the sticky bit, such as /tmp,
// where they can't rename what is not theirs.
//
// # Limits
//
// Access control lists are not looked at. In a user namespace, files of users that it does
// not know, among them mostly root, seem to belong to one user: directories above may.
//
// Sources: path_resolution(7), unlink(2) (EPERM), user_namespaces(7).
//
//	if err := statedir.Check("/var/lib/cleat"); err != nil {
//		return err
//	}
package statedir
