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

// Config configures the containers of a runtime.
type Config struct {
	Scratch  string   // directory of the lab for the engine's files, on one file system
	Share    []string // directories that every container sees at the same path
	Programs []string // further programs for the image, see program.Find
	Self     string   // path of the file that is this program in the image; "": the running program
}

// Options are what a program needs besides its node's network. All programs have
// CAP_NET_ADMIN, with which they choose a congestion control.
type Options struct {
	TUN   bool     // /dev/net/tun
	Share []string // directories that its container sees at the same path
}

// Runtime runs programs in containers of one engine. A nil Runtime runs them natively. It
// is safe for concurrent use.
type Runtime struct {
	name   string
	cfg    Config
	dir    string // has all of the engine's files
	env    []string
	mounts *privateMounts
	groups *groups
	engine engine

	started atomic.Int64

	mu       sync.Mutex
	unreaped []int // the engine's processes that Close has to reap
}

type engine interface {
	// start runs c in a new container.
	start(s containerSpec, c lab.Command) (lab.Proc, error)
	// close ends the engine. No container exists by then.
	close() error
}

type containerSpec struct {
	name string
	node *lab.Node
	tun  bool
	// share are directories that the container sees at the same path.
	share []string
	// interactive containers read their standard input.
	interactive bool
}

// engines are the engines by the names of cell.Runtimes.
var engines = map[string]struct {
	open     func(context.Context, *Runtime) (engine, error)
	programs []string // the engine requires them
	remedy   string
}{
	"docker":    {openDocker, []string{"dockerd", "containerd", "runc", "docker", "nsenter"}, "apt-get install docker.io"},
	"podman":    {openPodman, []string{"podman", "conmon", "nsenter"}, "apt-get install podman"},
	"apptainer": {openApptainer, []string{"apptainer", "nsenter"}, "apt-get install apptainer (Debian unstable), or a package from github.com/apptainer/apptainer/releases"},
}

// Check reports whether this lab can try to open the named runtime. The error is a
// *link.Lack for the first thing that is missing. Native requires nothing.
func Check(name string) error {
	f, _ := lab.Inside()
	return CheckIn(name, f == lab.Root)
}

// CheckIn is Check for a lab made by root, or by another user.
func CheckIn(name string, rootLab bool) error {
	if name == cell.Native {
		return nil
	}
	e, ok := engines[name]
	if !ok {
		return fmt.Errorf("unknown runtime %q", name)
	}
	if !rootLab {
		return &link.Lack{What: name, Reason: "its containers need a lab made by root", Remedy: "run the command with sudo, and not with --lab user"}
	}
	for _, p := range e.programs {
		if _, err := program.Find(p); err != nil {
			return &link.Lack{What: name, Reason: fmt.Sprintf("the program %s is not installed", p), Remedy: e.remedy}
		}
	}
	return nil
}

// Open makes a runtime ready; nil for cell.Native. The error is a *link.Lack for what this
// machine lacks, and for an engine that does not work here. Nothing is left behind then.
func Open(ctx context.Context, name string, cfg Config) (*Runtime, error) {
	if name == cell.Native {
		return nil, nil
	}
	r, err := newRuntime(name, cfg)
	if err != nil {
		return nil, err
	}
	err = r.prepare()
	if err == nil {
		r.engine, err = engines[name].open(ctx, r)
	}
	if err == nil {
		err = r.tryContainer(ctx)
	}
	if err != nil {
		return nil, r.openFailed(ctx, err)
	}
	return r, nil
}

// newRuntime returns a Runtime with a directory, but without engine.
func newRuntime(name string, cfg Config) (*Runtime, error) {
	if err := Check(name); err != nil {
		return nil, err
	}
	Sweep()
	dir, err := os.MkdirTemp(cfg.Scratch, name+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", name, err)
	}
	return &Runtime{name: name, cfg: cfg, dir: dir}, nil
}

// openFailed closes what is open and returns the reason as a *link.Lack.
func (r *Runtime) openFailed(ctx context.Context, err error) error {
	var lack *link.Lack
	isLack := errors.As(err, &lack)
	err = errors.Join(err, r.Close())
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if isLack {
		return lack
	}
	return &link.Lack{What: r.name, Reason: "it does not work here: " + err.Error()}
}

// prepare makes what all engines need: the image's files, control groups and private
// mounts.
func (r *Runtime) prepare() error {
	err := r.buildImage()
	if err != nil {
		return fmt.Errorf("make an image: %w", err)
	}
	if r.groups, err = newGroups(); err != nil {
		return err
	}
	if r.mounts, err = newPrivateMounts(filepath.Join(r.dir, "files")); err != nil {
		return err
	}
	home := filepath.Join(r.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return fmt.Errorf("make a directory for %s: %w", r.name, err)
	}
	r.env = environment(os.Environ(), home)
	return nil
}

// engineVariables are prefixes of variables by which users point their engines to another
// daemon or to other files.
var engineVariables = []string{"DOCKER_", "CONTAINER_", "CONTAINERS_", "PODMAN_", "APPTAINER_", "SINGULARITY_", "BUILDAH_", "STORAGE_", "XDG_", "NOTIFY_SOCKET", "LISTEN_"}

// environment returns arguments for env(1) that hide the user's configuration from an
// engine.
func environment(of []string, home string) []string {
	var args []string
	for _, kv := range of {
		name, _, _ := strings.Cut(kv, "=")
		for _, prefix := range engineVariables {
			if strings.HasPrefix(name, prefix) {
				args = append(args, "-u", name)
				break
			}
		}
	}
	return append(args, "HOME="+home, "APPTAINER_CONFIGDIR="+home+"/apptainer", "PATH="+program.SearchPath())
}

// tryContainer runs a container, since most problems of an engine show only then.
func (r *Runtime) tryContainer(ctx context.Context) error {
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
	stderr, _ := io.ReadAll(out)
	err = proc.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.Contains(engineExitCodes, exit.ExitCode()) {
		return fmt.Errorf("try a container: %w: %s", err, strings.Join(strings.Fields(string(stderr)), " "))
	}
	return nil // the exit code of the program itself does not matter
}

// engineExitCodes mean that the engine failed, not the program (docker-run(1),
// podman-run(1); Apptainer's is 255).
var engineExitCodes = []int{125, 126, 127, 255}

// String returns the runtime's name.
func (r *Runtime) String() string {
	if r == nil {
		return cell.Native
	}
	return r.name
}

// On returns a Runner of programs in containers that have the node's network. For a nil
// Runtime that is the node.
func (r *Runtime) On(n *lab.Node, o Options) lab.Runner {
	if r == nil {
		return n
	}
	return &containerRunner{runtime: r, node: n, options: o}
}

// Close ends the engine and removes its files. The programs must have ended, or been
// killed and waited for. Closing a nil Runtime does nothing.
func (r *Runtime) Close() error {
	if r == nil {
		return nil
	}
	var errs []error
	if r.engine != nil {
		errs = append(errs, r.engine.close())
	}
	if r.mounts != nil {
		for _, pid := range append(r.mounts.close(), r.unreaped...) {
			reap(pid)
		}
	}
	if r.groups != nil {
		errs = append(errs, r.groups.close())
	}
	return errors.Join(append(errs, os.RemoveAll(r.dir))...)
}

// reapLater leaves a process for Close to reap.
func (r *Runtime) reapLater(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unreaped = append(r.unreaped, pid)
}

// command returns a command line that runs args of the engine in its private mounts.
func (r *Runtime) command(args ...string) []string {
	enter := []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", r.mounts.holder.Process.Pid), "--", "env"}
	return slices.Concat(enter, r.env, args)
}
