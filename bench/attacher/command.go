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

// command is a program's command line, to be run on the host.
type command struct {
	args []string
	env  []string // all of its environment, but for the PATH
	in   []byte
}

// outcome is how a command ran.
type outcome struct {
	began time.Time
	took  time.Duration
	cpu   time.Duration // of it and of the children that it waited for
	out   string
}

// commandTimeout is how long one command may take; none here needs a second on an
// idle machine.
const commandTimeout = 30 * time.Second

// environment is all that programs have of theirs.
func (s *Host) environment(own []string) []string {
	return append([]string{"PATH=" + program.SearchPath(), "HOME=" + s.dir}, own...)
}

// run runs a command in the host's network to its end.
func (s *Host) run(ctx context.Context, c command) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandTimeout, fmt.Errorf("no end after %s", commandTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Env = s.environment(c.env)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.in), &out, &complaint
	var o outcome
	err := s.host.NS.Do(func() error {
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
		// CNI plugins complain on their standard output.
		said := strings.Join(strings.Fields(complaint.String()+" "+out.String()), " ")
		return o, fmt.Errorf("run %s: %w: %s", filepath.Base(c.args[0]), err, said)
	}
	o.cpu, o.out = cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime(), out.String()
	return o, nil
}
