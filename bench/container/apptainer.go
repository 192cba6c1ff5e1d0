package container

import (
	"context"
	"slices"

	"cleat/lab"
)

// apptainer makes containers by Apptainer, out of the image's directory. They run
// on the node because apptainer does.
type apptainer struct{ *Runtime }

func openApptainer(_ context.Context, r *Runtime) (engine, error) { return apptainer{r}, nil }

// execArgs are the arguments by which it runs a command: with its own /dev and
// /tmp, nothing of the user's, and of root's privileges the one that the others
// add. (All of root's, its default, it wants to give whether or not they are
// there.)
func (j job) execArgs(tree string, c lab.Command) []string {
	args := []string{"--silent", "exec", "--cleanenv", "--contain", "--no-home", "--pwd", "/",
		"--no-mount", "bind-paths", "--no-privs", "--add-caps", "CAP_NET_ADMIN"}
	share := slices.Clone(j.share)
	if j.tun {
		share = append(share, tunDevice)
	}
	for _, path := range share {
		args = append(args, "--bind", path)
	}
	args = append(args, tree)
	return append(args, c.Args...)
}

func (a apptainer) start(j job, c lab.Command) (lab.Proc, error) {
	c.Args = a.command(append([]string{"apptainer"}, j.execArgs(a.tree(), c)...)...)
	started, err := j.node.Start(c)
	if err != nil {
		return nil, err
	}
	return &proc{Proc: started, parent: func() (int, bool) { return started.PID(), true }}, nil
}

// close has nothing to end: Apptainer has no daemon.
func (apptainer) close() error { return nil }
