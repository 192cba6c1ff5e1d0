package container

import (
	"context"

	"cleat/lab"
)

// podman makes containers by Podman. It runs on the node, and so do they.
type podman struct{ client }

func openPodman(ctx context.Context, r *Runtime) (engine, error) {
	p := &podman{client{r, []string{"podman",
		"--root", r.file("storage"), "--runroot", r.file("run"), "--tmpdir", r.file("tmp"),
		"--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--events-backend", "none"}}}
	return p, p.load(ctx)
}

func (p *podman) start(s containerSpec, c lab.Command) (lab.Proc, error) {
	monitor, first := p.file(s.name+".conmon"), p.file(s.name+".pid")
	args := s.createArgs(c)
	own := []string{"create", "--pull", "never", "--cgroup-parent", p.groups.path(), "--conmon-pidfile", monitor, "--pidfile", first}
	if _, err := p.run(context.Background(), nil, append(own, args[1:]...)...); err != nil {
		return nil, err
	}
	return p.launch(s, c, monitor, first)
}

// close does nothing: Podman has no daemon.
func (p *podman) close() error { return nil }
