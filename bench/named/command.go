package named

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"cleat/lab"
)

// Command is a command line to be run on a host.
type Command struct {
	Args []string
	Env  []string // all of it
	In   []byte
}

// Usage is what commands took.
type Usage struct {
	Began  time.Time     // when the first was started
	Took   time.Duration // until the last had ended
	CPU    time.Duration // user and system, with the children that they waited for
	Output []byte        // of the last, on its standard output
}

// then adds the usage of a command that followed.
func (u Usage) then(next Usage) Usage {
	return Usage{Began: u.Began, Took: next.Began.Add(next.Took).Sub(u.Began), CPU: u.CPU + next.CPU, Output: next.Output}
}

// commandTimeout bounds one command. On an idle machine none takes a second, unless it
// publishes thousands of ports or a hundred others run at the same time.
const commandTimeout = 5 * time.Minute

// Exec runs a command in a host's network to its end. It is safe for concurrent use.
func Exec(ctx context.Context, host *lab.Node, c Command) (Usage, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandTimeout, fmt.Errorf("not ended after %s", commandTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env = c.Env
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.In), &stdout, &stderr
	var u Usage
	err := host.NS.Do(func() error {
		u.Began = time.Now()
		return cmd.Start()
	})
	if err == nil {
		err = cmd.Wait()
		u.Took = time.Since(u.Began)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		// CNI plugins and netavark print errors to their standard output.
		output := strings.Join(strings.Fields(stderr.String()+" "+stdout.String()), " ")
		return u, fmt.Errorf("run %s: %w: %s", filepath.Base(c.Args[0]), err, output)
	}
	u.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	u.Output = stdout.Bytes()
	return u, nil
}
