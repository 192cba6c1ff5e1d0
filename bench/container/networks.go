package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/internal/program"
	"cleat/lab"

	"golang.org/x/sys/unix"
)

// Networks is a Docker daemon that gives containers networks of its own, with a node as
// its host. It is used from one goroutine.
type Networks struct {
	runtime  *Runtime
	docker   *docker
	names    []string // of the running containers
	networks []string
	plugin   *exec.Cmd // nil: none runs
}

// dockerName is Docker's name in cell.Runtimes.
const dockerName = "docker"

// OpenNetworks starts a daemon on the node. The error is a *link.Lack for what this
// machine lacks, and if the daemon does not start. Nothing is left behind then.
func OpenNetworks(ctx context.Context, cfg Config, node *lab.Node) (*Networks, error) {
	r, err := newRuntime(dockerName, cfg)
	if err != nil {
		return nil, err
	}
	if err := r.prepare(); err != nil {
		return nil, r.openFailed(ctx, err)
	}
	d := &docker{client: dockerClient(r), host: node}
	if err := d.startWithImage(ctx); err != nil {
		return nil, r.openFailed(ctx, err)
	}
	r.engine = d
	return &Networks{runtime: r, docker: d}, nil
}

// Client returns the beginning of every command to the daemon: the program's path and the
// options of all commands. The command needs no environment but a PATH.
func (n *Networks) Client() ([]string, error) {
	path, err := program.Find(n.docker.global[0])
	if err != nil {
		return nil, err
	}
	return append([]string{path}, n.docker.global[1:]...), nil
}

// Run runs one of the client's commands to its end and returns its output.
func (n *Networks) Run(ctx context.Context, args ...string) (string, error) {
	return n.docker.run(ctx, nil, args...)
}

// CreateNetwork creates a network that lives until Close. args are further ones of docker-network-create(1).
func (n *Networks) CreateNetwork(ctx context.Context, name string, args ...string) error {
	_, err := n.Run(ctx, slices.Concat([]string{"network", "create"}, args, []string{name})...)
	if err == nil {
		n.networks = append(n.networks, name)
	}
	return err
}

// pluginTimeout is more than a network plug-in takes to start.
const pluginTimeout = 10 * time.Second

// StartPlugin starts a program that is a plug-in of the daemon, and waits until it has the socket
// /run/docker/plugins/NAME.sock. It is on the daemon's host, and sees the daemon's files, which the rest of
// the lab does not. Close ends it.
func (n *Networks) StartPlugin(ctx context.Context, name string, env, args []string) error {
	line := n.runtime.command(slices.Concat(env, args)...)
	plugin := exec.Command(line[0], line[1:]...)
	var stderr bytes.Buffer
	plugin.Stderr = &stderr
	if err := n.docker.host.NS.Start(plugin); err != nil {
		return fmt.Errorf("start plug-in %s: %w", name, err)
	}
	n.plugin = plugin
	socket := fmt.Sprintf("/proc/%d/root/run/docker/plugins/%s.sock", plugin.Process.Pid, name)
	for deadline := time.Now().Add(pluginTimeout); ; time.Sleep(daemonPoll) {
		if _, err := os.Stat(socket); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(deadline) {
			err := n.stopPlugin() // so that what it has said is complete
			return errors.Join(fmt.Errorf("plug-in %s has no socket after %s: %s", name, pluginTimeout, strings.TrimSpace(stderr.String())), err)
		}
	}
}

func (n *Networks) stopPlugin() error {
	if n.plugin == nil {
		return nil
	}
	err := n.plugin.Process.Signal(unix.SIGTERM)
	_ = n.plugin.Wait() // it says that it was stopped
	n.plugin = nil
	return err
}

// ContainerSpec describes a container on one of the daemon's networks.
type ContainerSpec struct {
	Name    string
	Network string
	Publish []string // ports, as docker-run(1) takes them
}

// Container starts a container in which this program runs until Remove or Close. It
// returns the process id in the lab of the container's first process.
func (n *Networks) Container(ctx context.Context, s ContainerSpec) (pid int, err error) {
	line := []string{"run", "--detach", "--name", s.Name, "--network", s.Network, "--label", image}
	for _, p := range s.Publish {
		line = append(line, "--publish", p)
	}
	// Any command would do that does not end. Nothing else uses port 1.
	if _, err := n.Run(ctx, append(line, image, selfPath, "traffic", "serve", "--listen", "127.0.0.1:1")...); err != nil {
		return 0, err
	}
	n.names = append(n.names, s.Name)
	text, err := n.Run(ctx, "inspect", "--format", "{{.State.Pid}}", s.Name)
	if err != nil {
		return 0, err
	}
	if pid, err = strconv.Atoi(text); err != nil || pid == 0 {
		return 0, fmt.Errorf("find the process of container %s: %q", s.Name, text)
	}
	return pid, nil
}

// Remove removes a container. ctx bounds the wait for the daemon.
func (n *Networks) Remove(ctx context.Context, name string) error {
	n.names = slices.DeleteFunc(n.names, func(o string) bool { return o == name })
	_, err := n.Run(ctx, "rm", "--force", name)
	return err
}

// Close removes the containers and networks, and ends the daemon and the plug-in.
func (n *Networks) Close() error {
	// What can't be removed goes with the lab.
	for _, name := range n.names {
		n.Run(context.Background(), "rm", "--force", name)
	}
	for _, name := range n.networks {
		n.Run(context.Background(), "network", "rm", name)
	}
	return errors.Join(n.stopPlugin(), n.runtime.Close())
}
