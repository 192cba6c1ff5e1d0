// Package seal drops what a process no longer needs: capabilities, the right to gain any,
// access to files, and system calls. It is for programs that forward other people's
// packets, once their descriptors are open. Nothing of it can be undone.
//
// # Theory of operation
//
// Process drops all capabilities except those to keep, sets no_new_privs, restricts the
// file system with Landlock where the kernel has it, makes the process undumpable, and
// finally installs a seccomp filter on all threads. If one step fails, the others are
// still taken: a container engine or an old kernel may forbid one of them, and partial
// protection is better than none. State reports what was achieved, and the error what was
// not. Whether that is acceptable is up to the caller.
//
// A filter is a list of permitted calls, with conditions on their arguments. Any other
// call fails with EPERM. It does not kill the process: an unlisted call has no effect
// either way, and a future Go runtime that tries a new system call, or a library that
// asks for something optional, should take its fallback instead of ending everybody's
// connections. Calls of another architecture do kill the process: no correct program
// makes them, and their numbers mean other calls. Runtime lists what any Go program
// needs; packages sandbox and tunnel/endpoint add their own calls.
//
// # Limits
//
// Filters are for amd64 and arm64; elsewhere installing one is an error. A kernel without
// Landlock is not an error: State says so. A directory listed in Config.Read is readable
// with everything below it.
//
// Sources: capabilities(7), seccomp(2), landlock(7), prctl(2), PR_SET_NO_NEW_PRIVS and
// PR_SET_DUMPABLE.
package seal
