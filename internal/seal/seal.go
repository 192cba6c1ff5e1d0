package seal

import (
	"errors"
	"fmt"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Config says what a process keeps.
type Config struct {
	Calls        []Call // Runtime and more
	Capabilities uint64 // bit n is capability n; those that the process lacks it does not get
	// Read are files and directories that may be opened for reading. Those that do not
	// exist are left out.
	Read []string
	// Remove are files that may be removed if Calls say how. Landlock knows directories
	// alone: others in theirs may be, too.
	Remove []string
	// AllFiles has no Landlock: what the user may read, the process may.
	AllFiles bool
}

// State is how a process is sealed.
type State struct {
	Capabilities    uint64 // that are left, bit n is capability n
	NoNewPrivileges bool
	Dumpable        bool
	Seccomp         bool // our filter; there may be others
	LandlockABI     int  // the kernel's version; 0: files are not restricted
}

// Process seals the process: all its threads and those that come. The error joins what
// could not be done; the rest was, and State says what it came to. It is called once, by
// one goroutine.
func Process(cfg Config) (State, error) {
	var s State
	capabilities := sys.DropCapabilities(cfg.Capabilities)
	held, err := sys.Capabilities()
	if err == nil && held&^cfg.Capabilities == 0 {
		capabilities = nil // there was nothing to drop
	}
	s.Capabilities = held
	privileges := sys.SetNoNewPrivileges()
	s.NoNewPrivileges = privileges == nil
	var files error
	if !cfg.AllFiles {
		s.LandlockABI, files = restrictFiles(cfg.Read, cfg.Remove)
	}
	dumps := forbidDumps()
	s.Dumpable = dumps != nil
	calls := restrictCalls(cfg.Calls)
	s.Seccomp = calls == nil
	return s, errors.Join(capabilities, err, privileges, files, dumps, calls)
}

// forbidDumps has no core files written with other people's data, and lets no other
// process of the same user look into this one.
func forbidDumps() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set not dumpable: %w", err)
	}
	return nil
}

func restrictCalls(calls []Call) error {
	f, err := filter(calls)
	if err != nil {
		return err
	}
	return sys.SetSeccomp(f)
}
