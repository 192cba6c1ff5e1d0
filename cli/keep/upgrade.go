package keep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"cleat/compat/docker"
)

// errUpgraded ends a keeper whose program was replaced by another version.
var errUpgraded = errors.New("the program was replaced")

// upgradeInterval is the time between two looks at the program's file.
const upgradeInterval = 2 * time.Second

// program is the program's file as it was when the process began.
type program struct {
	path string
	file os.FileInfo
}

func runningProgram() (program, error) {
	path, err := os.Executable()
	if err != nil {
		return program{}, fmt.Errorf("find this program: %w", err)
	}
	file, err := os.Stat("/proc/self/exe")
	return program{strings.TrimSuffix(path, " (deleted)"), file}, err
}

// untilReplaced returns a context that ends with errUpgraded as its cause when another file has
// the program's name, and that file has not changed between two looks: it is complete.
func (p program) untilReplaced(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(upgradeInterval)
		defer ticker.Stop()
		var last os.FileInfo
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			now, err := os.Stat(p.path)
			if err != nil || os.SameFile(now, p.file) || now.Mode()&0o111 == 0 {
				last = nil
				continue
			}
			if last != nil && os.SameFile(now, last) && now.Size() == last.Size() && now.ModTime().Equal(last.ModTime()) {
				cancel(errUpgraded)
				return
			}
			last = now
		}
	}()
	return ctx, cancel
}

// restart replaces this process by the program's new version, with the same arguments.
func (p program) restart() error {
	docker.PassOn()
	err := syscall.Exec(p.path, os.Args, os.Environ())
	return fmt.Errorf("start the new version of %s: %w", p.path, err)
}
