package container

import (
	"context"

	"cleat/lab"
)

// apptainer makes containers by Apptainer from the image's directory. It runs on the
// node, and so do they.
type apptainer struct{ *Runtime }

func openApptainer(_ context.Context, r *Runtime) (engine, error) { return apptainer{r}, nil }

// execArgs returns the arguments that run a command. The container has the lab's /dev,
// the default, and so /dev/net/tun. It has no files of the user's. Of root's privileges
// it has only the one that other engines add: by default Apptainer insists on giving all
// of root's, even those that the lab does not have.
func (s containerSpec) execArgs(tree string, c lab.Command) []string {
	args := []string{"--silent", "exec", "--cleanenv", "--no-home", "--pwd", "/",
		"--no-mount", "cwd,tmp,bind-paths", "--no-privs", "--add-caps", "CAP_NET_ADMIN"}
	for _, dir := range s.share {
		args = append(args, "--bind", dir)
	}
	args = append(args, tree)
	return append(args, c.Args...)
}

func (a apptainer) start(s containerSpec, c lab.Command) (lab.Proc, error) {
	c.Args = a.command(append([]string{"apptainer"}, s.execArgs(a.imageDir(), c)...)...)
	started, err := s.node.Start(c)
	if err != nil {
		return nil, err
	}
	return &proc{Proc: started, parent: func() (int, bool) { return started.PID(), true }}, nil
}

// close does nothing: Apptainer has no daemon.
func (apptainer) close() error { return nil }
