package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"cleat/lab"
	"cleat/link"

	"golang.org/x/sys/unix"
)

// docker makes containers by a daemon of its own.
type docker struct {
	client
	networks *lab.Node // on which it gives containers networks of its own; nil: containers have a node's
	daemon   *exec.Cmd
	ended    chan struct{} // closed when the daemon has ended
}

// nodeRuntime is what dockerd calls in the place of runc. Of a container with the
// network of the host dockerd says that it has dockerd's own (%[2]s), or nothing,
// which means that of the process that makes it: both become the node's. %[1]s is
// a directory with, for each container by its id, the network it is to have; the
// process id of its shim is left there, and a link to the file with that of its
// first process.
const nodeRuntime = `#!/bin/sh
for last; do :; done
create=
previous=
for word; do
	[ "$word" = create ] && create=yes
	[ "$previous" = --bundle ] && bundle=$word
	[ "$previous" = --pid-file ] && pidfile=$word
	previous=$word
done
if [ -n "$create" ]; then
	echo "$PPID" >"%[1]s/$last.shim"
	ln -s "$pidfile" "%[1]s/$last.pid"
	sed -i "s|%[2]s|%[1]s/$last.net|" "$bundle/config.json"
	exec nsenter --net="%[1]s/$last.net" -- runc "$@"
fi
exec runc "$@"
`

func openDocker(ctx context.Context, r *Runtime) (engine, error) {
	d := &docker{client: dockerClient(r)}
	if err := os.MkdirAll(d.nodes(), 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for dockerd: %w", err)
	}
	if err := os.WriteFile(r.file("runtime"), fmt.Appendf(nil, nodeRuntime, d.nodes(), d.file("exec/netns/default")), 0o700); err != nil {
		return nil, fmt.Errorf("write a runtime for dockerd: %w", err)
	}
	return d, d.begin(ctx)
}

// The longest name of a socket that dockerd and its containerd make, and how long a
// socket's path may be: sun_path has 108 bytes, the last of them 0 (unix(7)).
const (
	longestSocket = "exec/containerd/containerd.sock.ttrpc"
	socketPathMax = 107
)

// fits is a *link.Lack where the directory is too long for sockets in it, of which
// dockerd would say but "bind: invalid argument".
func fits(dir string) error {
	room := socketPathMax - len("/"+longestSocket)
	if len(dir) <= room {
		return nil
	}
	return &link.Lack{What: dockerName, Remedy: "give the command a short directory for temporary files: TMPDIR=/tmp",
		Reason: fmt.Sprintf("the path of a directory for its sockets may have %d bytes, and %s has %d", room, dir, len(dir))}
}

// begin starts the daemon and gives it the image; on an error it has ended.
func (d *docker) begin(ctx context.Context) error {
	if err := fits(d.dir); err != nil {
		return err
	}
	if err := os.WriteFile(d.file("daemon.json"), []byte("{}\n"), 0o600); err != nil {
		return fmt.Errorf("write a configuration for dockerd: %w", err)
	}
	if err := d.startDaemon(ctx); err != nil {
		return err
	}
	if err := d.load(ctx); err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

// dockerClient is the client of the runtime's own daemon.
func dockerClient(r *Runtime) client {
	return client{r, []string{"docker", "--config", r.file("client"), "--host", "unix://" + r.file("docker.sock")}}
}

// nodes is the directory that nodeRuntime reads.
func (d *docker) nodes() string { return d.file("nodes") }

// daemonArgs are dockerd's: everything in the runtime's directory, and no network
// of its own where its containers are to have a node's.
func (d *docker) daemonArgs() []string {
	args := []string{"dockerd",
		"--config-file", d.file("daemon.json"), "--host", "unix://" + d.file("docker.sock"), "--pidfile", d.file("dockerd.pid"),
		"--data-root", d.file("data"), "--exec-root", d.file("exec"),
		"--bridge", "none",
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", d.groups.path(),
	}
	if d.networks != nil {
		return args
	}
	return append(args, "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
		"--add-runtime", "node="+d.file("runtime"), "--default-runtime", "node")
}

// How long dockerd may take to answer, and to end.
const (
	daemonEvery = 50 * time.Millisecond
	daemonStart = 30 * time.Second // with containerd, on a busy machine
	daemonEnd   = 5 * time.Second
)

func (d *docker) startDaemon(ctx context.Context) error {
	log, err := os.OpenFile(d.file("dockerd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("keep what dockerd says: %w", err)
	}
	defer log.Close()
	line := d.command(d.daemonArgs()...)
	d.daemon = exec.Command(line[0], line[1:]...)
	d.daemon.Stdout, d.daemon.Stderr = log, log
	if err := d.startOnNode(); err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	d.ended = make(chan struct{})
	go func() {
		defer close(d.ended)
		d.daemon.Wait() // how it ended is in its log
	}()
	if err := d.answers(ctx); err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

// startOnNode starts the daemon where its networks are to be.
func (d *docker) startOnNode() error {
	if d.networks == nil {
		return d.daemon.Start()
	}
	return d.networks.NS.Do(d.daemon.Start)
}

// answers waits until dockerd does.
func (d *docker) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, daemonStart, fmt.Errorf("dockerd does not answer after %s", daemonStart))
	defer cancel()
	tick := time.NewTicker(daemonEvery)
	defer tick.Stop()
	for {
		if _, err := d.run(ctx, nil, "version"); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.ended:
			return fmt.Errorf("dockerd ended: %s", lastWords(d.file("dockerd.log")))
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), lastWords(d.file("dockerd.log")))
		}
	}
}

// lastWords is the last line of a log.
func lastWords(path string) string {
	text, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

func (d *docker) start(j job, c lab.Command) (lab.Proc, error) {
	id, err := d.run(context.Background(), nil, j.createArgs(c)...)
	if err != nil {
		return nil, err
	}
	of := filepath.Join(d.nodes(), id)
	if err := os.Symlink(j.node.NS.Path(), of+".net"); err != nil {
		_, gone := d.run(context.Background(), nil, "rm", "--force", j.name)
		return nil, errors.Join(fmt.Errorf("name the node's network: %w", err), gone)
	}
	return d.launch(j, c, of+".shim", of+".pid")
}

// close ends the daemon, and containerd with it.
func (d *docker) close() error {
	d.daemon.Process.Signal(unix.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(daemonEnd):
		d.daemon.Process.Kill() // containerd has asked to die with it
		<-d.ended
	}
	return nil
}
