package attacher

import (
	"context"

	"cleat/bench/named"
	"cleat/internal/program"
)

// command is a command line to be run on the host.
type command struct {
	args []string
	env  []string // besides PATH and HOME
	in   []byte
}

// environment returns the whole environment of a program.
func (h *Host) environment(own []string) []string {
	return append([]string{"PATH=" + program.SearchPath(), "HOME=" + h.dir}, own...)
}

// run runs a command in the host's network to its end.
func (h *Host) run(ctx context.Context, c command) (named.Usage, error) {
	return named.Exec(ctx, h.node, named.Command{Args: c.args, Env: h.environment(c.env), In: c.in})
}
