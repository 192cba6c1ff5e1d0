package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"cleat/bench/cell"
	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"
)

// Config says what the containers of a runtime are made of.
type Config struct {
	Scratch  string   // a directory of the lab for the engine's files, on one file system
	Share    []string // directories that every container sees at the same path
	Programs []string // on the PATH, to be in the image beside this program
	Self     string   // path of what is in the image as this program; "": the one that runs
}

// Options are what one program needs beyond the network of its node and
// CAP_NET_ADMIN, which all have: to choose a congestion control.
type Options struct {
	TUN   bool     // /dev/net/tun
	Share []string // directories that its container sees at the same path
}

// Runtime runs programs in containers of one engine. A nil Runtime runs them
// natively. It is safe for concurrent use.
type Runtime struct {
	name   string
	cfg    Config
	dir    string // all of the engine's files
	env    []string
	files  *files
	groups *groups
	engine engine

	started atomic.Int64

	mu   sync.Mutex
	late []int // processes of the engine's that have yet to be reaped
}

// engine makes containers.
type engine interface {
	// start runs c in a new container, as the job says.
	start(j job, c lab.Command) (lab.Proc, error)
	// close ends what the engine keeps running; no container is left by then.
	close() error
}

// job is one container to be made.
type job struct {
	name string
	node *lab.Node
	tun  bool
	// share are directories that it sees at the same path.
	share []string
	// interactive containers read their standard input.
	interactive bool
}

// engines make runtimes ready, by the names of cell.Runtimes.
var engines = map[string]struct {
	open     func(context.Context, *Runtime) (engine, error)
	programs []string // without which there is nothing to open
	remedy   string
}{
	"docker":    {openDocker, []string{"dockerd", "containerd", "runc", "docker", "nsenter"}, "apt-get install docker.io"},
	"podman":    {openPodman, []string{"podman", "conmon", "nsenter"}, "apt-get install podman"},
	"apptainer": {openApptainer, []string{"apptainer", "nsenter"}, "apt-get install apptainer (Debian unstable), or a package from github.com/apptainer/apptainer/releases"},
}

// Check is nil when this lab can try to open the runtime of that name, else the
// *link.Lack of the first thing that is missing. Native needs nothing.
func Check(name string) error {
	f, _ := lab.Inside()
	return CheckIn(name, f == lab.Root)
}

// CheckIn is Check for a lab that root would make, or another user.
func CheckIn(name string, rootLab bool) error {
	if name == cell.Native {
		return nil
	}
	e, ok := engines[name]
	if !ok {
		return fmt.Errorf("unknown runtime %q", name)
	}
	if !rootLab {
		return &link.Lack{What: name, Reason: "its containers need a lab that is made by root", Remedy: "run the command with sudo, and not with --lab user"}
	}
	for _, p := range e.programs {
		if _, err := program.Find(p); err != nil {
			return &link.Lack{What: name, Reason: fmt.Sprintf("the program %s is not installed", p), Remedy: e.remedy}
		}
	}
	return nil
}

// Open makes a runtime ready, nil for cell.Native. What this machine lacks, and
// why an engine does not start here, is a *link.Lack; nothing stays behind then.
func Open(ctx context.Context, name string, cfg Config) (*Runtime, error) {
	if err := Check(name); err != nil || name == cell.Native {
		return nil, err
	}
	Sweep()
	dir, err := os.MkdirTemp(cfg.Scratch, name+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", name, err)
	}
	r := &Runtime{name: name, cfg: cfg, dir: dir}
	err = r.open(ctx)
	if err == nil {
		return r, nil
	}
	return nil, r.giveUp(ctx, err)
}

// giveUp closes what could not be opened, and says why in a *link.Lack.
func (r *Runtime) giveUp(ctx context.Context, err error) error {
	var lack *link.Lack
	known := errors.As(err, &lack)
	err = errors.Join(err, r.Close())
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if known {
		return lack
	}
	return &link.Lack{What: r.name, Reason: "it does not work here: " + err.Error()}
}

func (r *Runtime) open(ctx context.Context) error {
	if err := r.prepare(); err != nil {
		return err
	}
	var err error
	if r.engine, err = engines[r.name].open(ctx, r); err != nil {
		return err
	}
	return r.try(ctx)
}

// prepare makes what all engines need: the image's files, control groups, a
// private view of the machine's files.
func (r *Runtime) prepare() error {
	var err error
	if err = r.pack(); err != nil {
		return err
	}
	if r.groups, err = newGroups(); err != nil {
		return err
	}
	if r.files, err = newFiles(filepath.Join(r.dir, "files")); err != nil {
		return err
	}
	home := filepath.Join(r.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return fmt.Errorf("make a directory for %s: %w", r.name, err)
	}
	r.env = environment(os.Environ(), home)
	return nil
}

// try runs a container: most of what an engine lacks shows only then.
func (r *Runtime) try(ctx context.Context) error {
	node, err := lab.NewNode("try")
	if err != nil {
		return err
	}
	defer node.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer out.Close()
	proc, err := r.On(node, Options{}).Start(lab.Command{Args: []string{lab.Self, "--help"}, Stderr: in})
	in.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, proc.Kill)()
	complaint, _ := io.ReadAll(out)
	err = proc.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.Contains(engineExits, exit.ExitCode()) {
		return fmt.Errorf("try a container: %w: %s", err, strings.Join(strings.Fields(string(complaint)), " "))
	}
	return nil // how the program itself ended is its affair
}

// engineExits are exit statuses by which engines say that it was they who failed
// (docker-run(1), podman-run(1); Apptainer's is 255).
var engineExits = []int{125, 126, 127, 255}

// String is the runtime's name.
func (r *Runtime) String() string {
	if r == nil {
		return cell.Native
	}
	return r.name
}

// On is where programs run in containers that have the node's network; the node
// itself for a nil Runtime.
func (r *Runtime) On(n *lab.Node, o Options) lab.Runner {
	if r == nil {
		return n
	}
	return &place{runtime: r, node: n, options: o}
}

// Close ends the engine and removes its files. Its programs must have ended, or
// been killed and waited for. A nil Runtime has nothing to close.
func (r *Runtime) Close() error {
	if r == nil {
		return nil
	}
	var errs []error
	if r.engine != nil {
		errs = append(errs, r.engine.close())
	}
	if r.files != nil {
		for _, pid := range append(r.files.close(), r.late...) {
			reap(pid)
		}
	}
	if r.groups != nil {
		errs = append(errs, r.groups.close())
	}
	return errors.Join(append(errs, os.RemoveAll(r.dir))...)
}

// later keeps a process to be reaped by Close.
func (r *Runtime) later(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = append(r.late, pid)
}

// command is a command line of the engine's, to be run where its files are.
func (r *Runtime) command(args ...string) []string {
	env := append([]string{"env"}, r.env...)
	return append(r.files.enter(), append(env, args...)...)
}
