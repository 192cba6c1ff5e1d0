package seal

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// DirsOf are the directories on the way from a file to what it leads to: those that have
// to be readable so that it can be opened again after it was replaced.
func DirsOf(path string) []string {
	var all []string
	for range 8 { // as many links as anybody has had reason for
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

// restrictFiles lets nothing of the file system through but reading and removing what is
// named, and returns the version of Landlock that sees to it; 0: none does.
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
	// V5 is files alone. Later versions also know signals and abstract sockets,
	// which seccomp has an opinion about already.
	if err := landlock.V5.BestEffort().RestrictPaths(rules...); err != nil {
		return 0, fmt.Errorf("restrict the file system: %w", err)
	}
	if abi, err = llsys.LandlockGetABIVersion(); err != nil {
		return 0, nil // the kernel has none, or somebody forbids to ask
	}
	return abi, nil
}
