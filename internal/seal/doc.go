// Package seal takes from a process what it does not need any more: capabilities, the
// right to gain any, files, and system calls. It is for programs that move other people's
// packets, once their descriptors are open; none of it can be undone.
//
// # Theory of operation
//
// Process gives up all capabilities but some, sets no_new_privs, has Landlock let through
// only what is named, where the kernel has it, makes the process undumpable, and at last
// puts a seccomp filter on all threads. Each step is taken even if another could not be:
// less is better than nothing where a container's engine or an old kernel forbids one.
// What holds then is the State; what is missing is the error, and the caller's to judge.
//
// A filter is a list of calls that are let through, with conditions on their arguments;
// everything else fails with EPERM. It could as well kill the process; but nothing unlisted
// is ever done either way, and a Go runtime of tomorrow that tries a new system call, or a
// library that asks for something it can do without, should find its fallback and not end
// everybody's connections. Calls of another architecture do kill: nobody honest makes
// them, and their numbers mean something else. Runtime is what any Go program needs;
// sandbox and tunnel/endpoint add what they do.
//
// # Limits
//
// Filters are for amd64 and arm64; elsewhere there is none, which is an error. Landlock
// may be missing, which is none: State says so. A directory that is named is readable
// with all that is below it.
//
// Sources: capabilities(7), seccomp(2), landlock(7), prctl(2), PR_SET_NO_NEW_PRIVS and
// PR_SET_DUMPABLE.
package seal
