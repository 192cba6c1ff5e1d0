package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/procstat"
	"cleat/lab"
)

// containerRunner runs programs in containers that have a node's network.
type containerRunner struct {
	runtime *Runtime
	node    *lab.Node
	options Options
}

// Start runs c in a container of its own. The program must be lab.Self or one of
// Config.Programs. Killing it kills the container. The container is removed when Wait
// returns.
func (p *containerRunner) Start(c lab.Command) (proc lab.Proc, err error) {
	r, program := p.runtime, c.Args[0]
	defer func() {
		if err != nil {
			err = fmt.Errorf("start %s on %s in a container of %s: %w", program, p.node, r, err)
		}
	}()
	if len(c.Extra) > 0 {
		return nil, errors.New("containers get no descriptors beside the standard ones")
	}
	c.Args = slices.Clone(c.Args)
	switch {
	case program == lab.Self:
		c.Args[0] = selfPath
	case !slices.Contains(r.cfg.Programs, program):
		return nil, errors.New("it is not in the image: name it in Config.Programs")
	default:
		c.Args[0] = "/usr/bin/" + program
	}
	return r.engine.start(containerSpec{
		name:        fmt.Sprintf("%s-%d", image, r.started.Add(1)),
		node:        p.node,
		tun:         p.options.TUN,
		share:       slices.Concat(r.cfg.Share, p.options.Share),
		interactive: c.Stdin != nil,
	}, c)
}

const tunDevice = "/dev/net/tun"

// createArgs returns the arguments, common to Docker and Podman, that create a container
// for a command. They are the paper's `--network host --cap-add NET_ADMIN --device
// /dev/net/tun`, and what marks the container as the bench's.
func (s containerSpec) createArgs(c lab.Command) []string {
	args := []string{"create", "--name", s.name, "--rm", "--network", "host", "--cap-add", "NET_ADMIN",
		// With SELinux a container could not use the lab's sockets.
		"--security-opt", "label=disable", "--label", image}
	if s.tun {
		args = append(args, "--device", tunDevice)
	}
	if len(c.CPU) > 0 {
		args = append(args, "--cpuset-cpus", cpuList(c.CPU))
	}
	for _, dir := range s.share {
		args = append(args, "--volume", dir+":"+dir)
	}
	if s.interactive {
		args = append(args, "--interactive")
	}
	args = append(args, image)
	return append(args, c.Args...)
}

func (s containerSpec) startArgs() []string {
	args := []string{"start", "--attach"}
	if s.interactive {
		args = append(args, "--interactive")
	}
	return append(args, s.name)
}

// cpuList formats processors as in cpuset(7).
func cpuList(cpus []int) string {
	words := make([]string, len(cpus))
	for i, c := range cpus {
		words[i] = strconv.Itoa(c)
	}
	return strings.Join(words, ",")
}

// readPID reads a process id from a file that may not exist yet.
func readPID(path string) (int, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid, err == nil
}

// children returns the processes whose parent is pid.
func children(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var found []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		const parent = 4
		if stat, _ := procstat.Parse(text); stat.Field(parent) != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, child)
		}
	}
	return found
}
