package seal

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// DirsOf returns the directories on the way from a path, through its symbolic links, to
// the file. They must be readable to open the path again after the file was replaced.
func DirsOf(path string) []string {
	var all []string
	for range 8 { // more links than any real path has
		all = append(all, filepath.Dir(path))
		to, err := os.Readlink(path)
		if err != nil {
			return all
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return all
}

// restrictFiles restricts file system access to reading read and removing remove. It
// returns the Landlock version that enforces this, or 0 if the kernel has none.
func restrictFiles(read, remove []string) (abi int, err error) {
	var rules []landlock.Rule
	for _, path := range read {
		st, err := os.Stat(path)
		switch {
		case err != nil:
			continue
		case st.IsDir():
			rules = append(rules, landlock.RODirs(path).IgnoreIfMissing())
		default:
			rules = append(rules, landlock.ROFiles(path).IgnoreIfMissing())
		}
	}
	for _, path := range remove {
		rules = append(rules, landlock.PathAccess(llsys.AccessFSRemoveFile, filepath.Dir(path)).IgnoreIfMissing())
	}
	// Version 5 covers files only. Later versions also restrict signals and abstract
	// sockets, which the seccomp filter already does.
	if err := landlock.V5.BestEffort().RestrictPaths(rules...); err != nil {
		return 0, fmt.Errorf("restrict the file system: %w", err)
	}
	if abi, err = llsys.LandlockGetABIVersion(); err != nil {
		return 0, nil // no Landlock in the kernel, or a policy forbids asking
	}
	return abi, nil
}
