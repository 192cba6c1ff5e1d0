package container

import (
	"context"

	"cleat/lab"
)

// apptainer makes containers by Apptainer, out of the image's directory. They run
// on the node because apptainer does.
type apptainer struct{ *Runtime }

func openApptainer(_ context.Context, r *Runtime) (engine, error) { return apptainer{r}, nil }

// execArgs are the arguments by which it runs a command: with the lab's /dev, as
// is its default, so with /dev/net/tun; without the user's files; and of root's
// privileges with the one that the others add. (All of root's, its default, it
// wants to give whether or not they are there.)
func (j job) execArgs(tree string, c lab.Command) []string {
	args := []string{"--silent", "exec", "--cleanenv", "--no-home", "--pwd", "/",
		"--no-mount", "cwd,tmp,bind-paths", "--no-privs", "--add-caps", "CAP_NET_ADMIN"}
	for _, dir := range j.share {
		args = append(args, "--bind", dir)
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
