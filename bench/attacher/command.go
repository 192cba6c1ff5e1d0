package attacher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"cleat/internal/program"
)

// command is a command line to be run on the host.
type command struct {
	args []string
	env  []string // besides PATH and HOME
	in   []byte
}

type outcome struct {
	began time.Time
	took  time.Duration
	cpu   time.Duration // with the children that it waited for
}

// commandTimeout bounds one command. On an idle machine none takes a second.
const commandTimeout = 30 * time.Second

// environment returns the whole environment of a program.
func (h *Host) environment(own []string) []string {
	return append([]string{"PATH=" + program.SearchPath(), "HOME=" + h.dir}, own...)
}

// run runs a command in the host's network to its end.
func (h *Host) run(ctx context.Context, c command) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandTimeout, fmt.Errorf("not ended after %s", commandTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Env = h.environment(c.env)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.in), &stdout, &stderr
	var o outcome
	err := h.node.NS.Do(func() error {
		o.began = time.Now()
		return cmd.Start()
	})
	if err == nil {
		err = cmd.Wait()
		o.took = time.Since(o.began)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		// CNI plugins print errors to their standard output.
		output := strings.Join(strings.Fields(stderr.String()+" "+stdout.String()), " ")
		return o, fmt.Errorf("run %s: %w: %s", filepath.Base(c.args[0]), err, output)
	}
	o.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return o, nil
}
