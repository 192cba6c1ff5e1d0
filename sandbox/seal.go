package sandbox

// Seal is for a program that does nothing else from now on: it gives up all
// capabilities and the right to gain any, restricts the file system with
// Landlock where the kernel has it, and limits the whole process (all threads)
// to the system calls that moving bytes takes. It can't be undone. Call it after
// Prepare and before Run. A kernel without seccomp is an error.
func Seal(cfg SealConfig) error { return errNotYet }

// SealConfig says what a sealed process needs besides moving bytes.
type SealConfig struct {
	// ReadPaths are files and directories that may still be opened for reading;
	// /etc/resolv.conf and what it points to always may.
	ReadPaths []string
	// AllowKill lets the process send signals, to pass on those it gets.
	AllowKill bool
}
