package pipework

import (
	"context"
	"os"
	"strings"

	"cleat/internal/program"
	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// become replaces this process by a program in the container's network namespace. It
// returns only on error.
func become(ctx context.Context, cfg attach.Config, guest string, command []string) error {
	path, err := program.Find(command[0])
	if err != nil {
		return wrong("install iproute2", "run `%s`: %s not found", strings.Join(command, " "), command[0])
	}
	_, ns, err := cfg.Find(ctx, guest)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error {
		return &os.PathError{Op: "run", Path: path, Err: unix.Exec(path, command, os.Environ())}
	})
}
