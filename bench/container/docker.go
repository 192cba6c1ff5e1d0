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
	host   *lab.Node // gives containers networks of its own; nil: containers have the network of their node
	daemon *exec.Cmd
	ended  chan struct{} // closed when the daemon has ended
}

// runtimeScript is what dockerd calls instead of runc. It replaces the network of a
// container that is to have the host's network: dockerd's configuration names either
// dockerd's own namespace (%[2]s) or none, which means that of the runtime's process.
// Both become the node's. %[1]s is a directory that has, by container id, a link to the
// network. The script leaves there the process id of the container's shim, and a link to
// the file with that of its first process.
const runtimeScript = `#!/bin/sh
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
	if err := os.MkdirAll(d.nodesDir(), 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for dockerd: %w", err)
	}
	if err := os.WriteFile(r.file("runtime"), fmt.Appendf(nil, runtimeScript, d.nodesDir(), d.file("exec/netns/default")), 0o700); err != nil {
		return nil, fmt.Errorf("write a runtime for dockerd: %w", err)
	}
	return d, d.startWithImage(ctx)
}

// Sockets of dockerd and its containerd. A socket's path has at most 107 bytes: sun_path
// has 108, and the last is 0 (unix(7)).
const (
	longestSocketName = "exec/containerd/containerd.sock.ttrpc"
	socketPathMax     = 107
)

// checkSocketPath returns a *link.Lack if the directory's path is too long for sockets in
// it. dockerd's own error would only be "bind: invalid argument".
func checkSocketPath(dir string) error {
	room := socketPathMax - len("/"+longestSocketName)
	if len(dir) <= room {
		return nil
	}
	return &link.Lack{What: dockerName, Remedy: "give the command a short directory for temporary files: TMPDIR=/tmp",
		Reason: fmt.Sprintf("the path of a directory for its sockets has at most %d bytes, and %s has %d", room, dir, len(dir))}
}

// startWithImage starts the daemon and loads the image. After an error the daemon has
// ended.
func (d *docker) startWithImage(ctx context.Context) error {
	if err := checkSocketPath(d.dir); err != nil {
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

// dockerClient returns a client of the runtime's own daemon.
func dockerClient(r *Runtime) client {
	return client{r, []string{"docker", "--config", r.file("client"), "--host", "unix://" + r.file("docker.sock")}}
}

// nodesDir is the directory that runtimeScript reads.
func (d *docker) nodesDir() string { return d.file("nodes") }

// daemonArgs returns dockerd's command line. All its files are in the runtime's
// directory. It changes no network settings if its containers have the network of their
// node.
func (d *docker) daemonArgs() []string {
	args := []string{"dockerd",
		"--config-file", d.file("daemon.json"), "--host", "unix://" + d.file("docker.sock"), "--pidfile", d.file("dockerd.pid"),
		"--data-root", d.file("data"), "--exec-root", d.file("exec"),
		"--bridge", "none",
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", d.groups.path(),
	}
	if d.host != nil {
		return args
	}
	return append(args, "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
		"--add-runtime", "node="+d.file("runtime"), "--default-runtime", "node")
}

// Timeouts of dockerd.
const (
	daemonPoll         = 50 * time.Millisecond
	daemonStartTimeout = 30 * time.Second // with containerd, on a busy machine
	daemonStopTimeout  = 5 * time.Second
)

func (d *docker) startDaemon(ctx context.Context) error {
	log, err := os.OpenFile(d.file("dockerd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("make a log for dockerd: %w", err)
	}
	defer log.Close()
	line := d.command(d.daemonArgs()...)
	d.daemon = exec.Command(line[0], line[1:]...)
	d.daemon.Stdout, d.daemon.Stderr = log, log
	start := d.daemon.Start
	if d.host != nil {
		start = func() error { return d.host.NS.Do(d.daemon.Start) }
	}
	if err := start(); err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	d.ended = make(chan struct{})
	go func() {
		defer close(d.ended)
		d.daemon.Wait() // the log has the reason
	}()
	if err := d.awaitReady(ctx); err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

func (d *docker) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, daemonStartTimeout, fmt.Errorf("dockerd has not answered after %s", daemonStartTimeout))
	defer cancel()
	tick := time.NewTicker(daemonPoll)
	defer tick.Stop()
	for {
		if _, err := d.run(ctx, nil, "version"); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.ended:
			return fmt.Errorf("dockerd ended: %s", lastLine(d.file("dockerd.log")))
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), lastLine(d.file("dockerd.log")))
		}
	}
}

func lastLine(path string) string {
	text, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

func (d *docker) start(s containerSpec, c lab.Command) (lab.Proc, error) {
	id, err := d.run(context.Background(), nil, s.createArgs(c)...)
	if err != nil {
		return nil, err
	}
	of := filepath.Join(d.nodesDir(), id)
	if err := os.Symlink(s.node.NS.Path(), of+".net"); err != nil {
		_, gone := d.run(context.Background(), nil, "rm", "--force", s.name)
		return nil, errors.Join(fmt.Errorf("link the node's network: %w", err), gone)
	}
	return d.launch(s, c, of+".shim", of+".pid")
}

// close ends the daemon, and containerd with it.
func (d *docker) close() error {
	d.daemon.Process.Signal(unix.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(daemonStopTimeout):
		d.daemon.Process.Kill() // containerd has asked the kernel to be killed with it
		<-d.ended
	}
	return nil
}
