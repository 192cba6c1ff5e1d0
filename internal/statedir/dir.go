package statedir

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// env overrides the default state directory.
const env = "CLEAT_STATE_DIR"

const (
	defaultPath = "/var/lib/cleat"
	defaultRuns = "/run/cleat/attach" // parent of the default directory's RunPath
)

// Dir is a state directory.
type Dir struct {
	path string // absolute
	runs string // parent of the directories that are named after a boot id
	boot string
}

// Open returns the state directory at path. An empty path means that of the environment
// variable CLEAT_STATE_DIR, or /var/lib/cleat. The directory need not exist. The error is an
// *Unsafe if other users can change its files.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(cmp.Or(path, os.Getenv(env), defaultPath))
	if err != nil {
		return nil, fmt.Errorf("find state directory: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	d := &Dir{path: path, runs: filepath.Join(path, "run"), boot: strings.TrimSpace(string(boot))}
	if d.IsDefault() {
		d.runs = defaultRuns
	}
	return d, d.check()
}

func (d *Dir) check() error {
	if err := Check(d.path); err != nil {
		return err
	}
	return Check(d.runs)
}

// IsDefault reports whether d is /var/lib/cleat.
func (d *Dir) IsDefault() bool { return d.path == defaultPath }

// BootID returns the boot id of the running kernel.
func (d *Dir) BootID() string { return d.boot }

// Path returns the path of a file that survives a restart of the machine.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// RunPath returns the path of a file that is valid until the machine restarts. Its
// directory is below /run/cleat/attach for the default state directory, and below "run" in
// any other, so that two state directories share nothing.
func (d *Dir) RunPath(elem ...string) string {
	return filepath.Join(append([]string{d.runs, d.boot}, elem...)...)
}

// Make creates the state directory if it does not exist.
func (d *Dir) Make() error {
	if err := os.MkdirAll(d.path, 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	return d.check() // another process may have created it first
}

// Prepare creates directories, given relative to Path and to RunPath, and removes what
// earlier boots left. If the last of the latter exists, all of that is done.
func (d *Dir) Prepare(lasting, run []string) error {
	if _, err := os.Stat(d.RunPath(run[len(run)-1])); err == nil {
		return nil
	}
	boots, _ := os.ReadDir(d.runs) // usually it does not exist yet
	for _, e := range boots {
		if e.Name() == d.boot {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.runs, e.Name())); err != nil {
			return fmt.Errorf("remove state of an earlier boot: %w", err)
		}
	}
	if err := d.Make(); err != nil {
		return err
	}
	var dirs []string
	for _, name := range lasting {
		dirs = append(dirs, d.Path(name))
	}
	for _, name := range run {
		dirs = append(dirs, d.RunPath(name))
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make state directory: %w", err)
		}
	}
	return nil
}
