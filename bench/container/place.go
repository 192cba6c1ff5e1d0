package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cleat/lab"
)

// place is a node on which programs run in containers.
type place struct {
	runtime *Runtime
	node    *lab.Node
	options Options
}

// errExtra says that a command wants more than a container can be given.
var errExtra = errors.New("containers get no descriptors beside the standard ones")

// errNotPacked says that the image lacks a program.
var errNotPacked = errors.New("it is not in the image: name it in Config.Programs")

// Start runs c in a container of its own. Its program is lab.Self or one of
// Config.Programs. Killing it kills the container; it is gone when Wait returns.
func (p *place) Start(c lab.Command) (lab.Proc, error) {
	r := p.runtime
	proc, err := r.start(p, c)
	if err != nil {
		return nil, fmt.Errorf("start %s on %s in a container of %s: %w", c.Args[0], p.node, r, err)
	}
	return proc, nil
}

func (r *Runtime) start(p *place, c lab.Command) (lab.Proc, error) {
	if len(c.Extra) > 0 {
		return nil, errExtra
	}
	c.Args = slices.Clone(c.Args)
	switch {
	case c.Args[0] == lab.Self:
		c.Args[0] = selfPath
	case !slices.Contains(r.cfg.Programs, c.Args[0]):
		return nil, errNotPacked
	default:
		c.Args[0] = "/usr/bin/" + c.Args[0]
	}
	return r.engine.start(job{
		name:        fmt.Sprintf("%s-%d", image, r.started.Add(1)),
		node:        p.node,
		tun:         p.options.TUN,
		share:       slices.Concat(r.cfg.Share, p.options.Share),
		interactive: c.Stdin != nil,
	}, c)
}

// tunDevice is the device that a program opens to make TUN devices.
const tunDevice = "/dev/net/tun"

// createArgs are the arguments, common to Docker and Podman, by which they make
// a container for a command: the paper's `--network host --cap-add NET_ADMIN
// --device /dev/net/tun`, and what makes it one of ours.
func (j job) createArgs(c lab.Command) []string {
	args := []string{"create", "--name", j.name, "--rm", "--network", "host", "--cap-add", "NET_ADMIN",
		// With SELinux a container may not use the lab's sockets otherwise.
		"--security-opt", "label=disable", "--label", image}
	if j.tun {
		args = append(args, "--device", tunDevice)
	}
	if len(c.CPU) > 0 {
		args = append(args, "--cpuset-cpus", list(c.CPU))
	}
	for _, dir := range j.share {
		args = append(args, "--volume", dir+":"+dir)
	}
	if j.interactive {
		args = append(args, "--interactive")
	}
	args = append(args, image)
	return append(args, c.Args...)
}

// startArgs are the arguments by which they start it.
func (j job) startArgs() []string {
	args := []string{"start", "--attach"}
	if j.interactive {
		args = append(args, "--interactive")
	}
	return append(args, j.name)
}

// list writes processors as cpuset(7) wants them.
func list(cpus []int) string {
	words := make([]string, len(cpus))
	for i, c := range cpus {
		words[i] = strconv.Itoa(c)
	}
	return strings.Join(words, ",")
}

// readPID reads a process id from a file that may not be there yet.
func readPID(path string) (int, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid, err == nil
}

// children are the processes whose parent is pid.
func children(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var found []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may hold anything; state and parent follow.
		_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
		words := strings.Fields(rest)
		if len(words) < 2 || words[1] != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, child)
		}
	}
	return found
}
