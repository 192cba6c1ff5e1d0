package container

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"cleat/internal/program"
	"cleat/lab"
)

// Networks is a Docker daemon that gives its containers networks of its own, with
// a node as its host. It is used from one goroutine.
type Networks struct {
	runtime *Runtime
	docker  *docker
	names   []string // of the containers that run
}

// dockerName is Docker's among cell.Runtimes.
const dockerName = "docker"

// OpenNetworks starts a daemon on the node. What this machine lacks, and why the
// daemon does not start here, is a *link.Lack; nothing stays behind then.
func OpenNetworks(ctx context.Context, cfg Config, node *lab.Node) (*Networks, error) {
	if err := Check(dockerName); err != nil {
		return nil, err
	}
	Sweep()
	dir, err := os.MkdirTemp(cfg.Scratch, dockerName+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", dockerName, err)
	}
	r := &Runtime{name: dockerName, cfg: cfg, dir: dir}
	if err := r.prepare(); err != nil {
		return nil, r.giveUp(ctx, err)
	}
	d := &docker{client: dockerClient(r), networks: node}
	if err := d.begin(ctx); err != nil {
		return nil, r.giveUp(ctx, err)
	}
	r.engine = d
	return &Networks{runtime: r, docker: d}, nil
}

// Client is the line that begins every command to the daemon: the program's path,
// and the options that all have. It needs no environment but a PATH.
func (n *Networks) Client() ([]string, error) {
	path, err := program.Find(n.docker.global[0])
	if err != nil {
		return nil, err
	}
	return append([]string{path}, n.docker.global[1:]...), nil
}

// Run runs one of the client's commands to its end, and returns what it printed.
func (n *Networks) Run(ctx context.Context, args ...string) (string, error) {
	return n.docker.run(ctx, nil, args...)
}

// Container starts a container on one of the daemon's networks, in which this
// program runs with these arguments until Close. It returns the process id, in
// the lab, of the container's first process.
func (n *Networks) Container(ctx context.Context, name, network string, args ...string) (pid int, err error) {
	line := append([]string{"run", "--detach", "--name", name, "--network", network, "--label", image, image, selfPath}, args...)
	if _, err := n.Run(ctx, line...); err != nil {
		return 0, err
	}
	n.names = append(n.names, name)
	said, err := n.Run(ctx, "inspect", "--format", "{{.State.Pid}}", name)
	if err != nil {
		return 0, err
	}
	if pid, err = strconv.Atoi(said); err != nil || pid == 0 {
		return 0, fmt.Errorf("find the process of container %s: %q", name, said)
	}
	return pid, nil
}

// Close removes the containers and ends the daemon.
func (n *Networks) Close() error {
	for _, name := range n.names {
		n.Run(context.Background(), "rm", "--force", name) // it ends with the lab at the latest
	}
	return n.runtime.Close()
}
