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

// client is a command-line client that makes containers and starts them: docker
// or podman.
type client struct {
	*Runtime
	global []string // the program and the options that all its commands have
}

// clientTimeout bounds a command that makes or removes something; 128 of them
// run at once on a small machine.
const clientTimeout = time.Minute

// outputDelay is how long a command that has ended may leave its output to another
// process.
const outputDelay = 5 * time.Second

// run runs one of the client's commands to its end, and returns what it printed.
func (c *client) run(ctx context.Context, in io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	line := c.command(append(c.global, args...)...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Stdin = in
	cmd.WaitDelay = outputDelay
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", c.name, args[0], err, strings.Join(strings.Fields(complaint.String()), " "))
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
		err := archive(w, c.tree())
		w.Close()
		written <- err
	}()
	_, err = c.run(ctx, r, "import", "-", image)
	r.Close() // so that writing ends
	if wrote := <-written; err == nil {
		err = wrote
	}
	return err
}

// launch starts the container j, which has been created. Its parent's process id
// and that of its first process will be in the files.
func (c *client) launch(j job, cmd lab.Command, parentFile, pidFile string) (lab.Proc, error) {
	cmd.Args = c.command(append(c.global, j.startArgs()...)...)
	cmd.CPU = nil                                                                  // the container has its own; the client only waits
	remove := func() { c.run(context.Background(), nil, "rm", "--force", j.name) } // it may be gone
	started, err := j.node.Start(cmd)
	if err != nil {
		remove()
		return nil, err
	}
	return &proc{Proc: started, remove: remove, later: c.later, pidFile: pidFile, parent: func() (int, bool) { return readPID(parentFile) }}, nil
}

// file is one of the engine's own files.
func (r *Runtime) file(name string) string { return filepath.Join(r.dir, name) }
