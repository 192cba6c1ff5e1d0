package container

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"cleat/lab"
)

// client is a command-line client that makes and starts containers: docker or podman.
type client struct {
	*Runtime
	global []string // the program, and the options of all its commands
}

// clientTimeout bounds a command that makes or removes something. 128 of them run at once
// on a small machine.
const clientTimeout = time.Minute

// outputDelay is how long another process may hold the output of a command that has
// ended.
const outputDelay = 5 * time.Second

// run runs one of the client's commands to its end and returns its output.
func (c *client) run(ctx context.Context, in io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	line := c.command(append(c.global, args...)...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Stdin = in
	cmd.WaitDelay = outputDelay
	var out, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", c.name, args[0], err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return strings.TrimSpace(out.String()), nil
}

// load imports the image.
func (c *client) load(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	written := make(chan error, 1)
	go func() {
		err := archive(w, c.imageDir())
		w.Close()
		written <- err
	}()
	_, err = c.run(ctx, r, "import", "-", image)
	r.Close() // so that archive ends
	if wrote := <-written; err == nil {
		err = wrote
	}
	return err
}

// launch starts a container that has been created. The engine writes the process ids of
// the container's parent and of its first process to the files.
func (c *client) launch(s containerSpec, cmd lab.Command, parentFile, pidFile string) (lab.Proc, error) {
	cmd.Args = c.command(append(c.global, s.startArgs()...)...)
	cmd.CPU = nil                                                                  // the container's cpuset applies; the client only waits
	remove := func() { c.run(context.Background(), nil, "rm", "--force", s.name) } // it may be gone already
	started, err := s.node.Start(cmd)
	if err != nil {
		remove()
		return nil, err
	}
	return &proc{Proc: started, remove: remove, reapLater: c.reapLater, pidFile: pidFile, parent: func() (int, bool) { return readPID(parentFile) }}, nil
}

// file returns the path of one of the engine's own files.
func (r *Runtime) file(name string) string { return filepath.Join(r.dir, name) }
