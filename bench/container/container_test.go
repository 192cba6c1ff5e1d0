package container

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"

	"golang.org/x/sys/unix"
)

// engineCommand is the engine's command that started a container. It counts how often it
// is killed.
type engineCommand struct {
	lab.Proc
	kills int
}

func (e *engineCommand) PID() int { return os.Getpid() }
func (e *engineCommand) Kill()    { e.kills++ }

// TestKillTwice checks that Kill removes a container by its engine only if the first
// process does not exist yet. Removing one whose process was killed would take longer
// than a measurement may.
func TestKillTwice(t *testing.T) {
	first := exec.Command("sleep", "60")
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(first.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	removed := 0
	command := &engineCommand{}
	parent := func() (int, bool) { return os.Getpid(), true }
	started := &proc{Proc: command, pidFile: pidFile, parent: parent, remove: func() { removed++ }}
	started.Kill()
	first.Wait() // the error of a killed process means nothing
	started.Kill()
	if removed != 0 || command.kills != 0 {
		t.Errorf("removed %d times, its engine's command killed %d times", removed, command.kills)
	}
	early := &proc{Proc: command, pidFile: pidFile + ".none", parent: parent, remove: func() { removed++ }}
	early.Kill()
	if removed != 1 || command.kills != 1 {
		t.Errorf("a container without a process: removed %d times, killed %d times", removed, command.kills)
	}
}

func TestCreateArgs(t *testing.T) {
	common := "create --name n --rm --network host --cap-add NET_ADMIN --security-opt label=disable --label cleat-bench "
	for _, tt := range []struct {
		name string
		job  containerSpec
		cpus []int
		want string
	}{
		{"plain", containerSpec{name: "n"}, nil, common + "cleat-bench /cleat serve"},
		{"pinned", containerSpec{name: "n"}, []int{0, 3}, common + "--cpuset-cpus 0,3 cleat-bench /cleat serve"},
		{"a tunnel", containerSpec{name: "n", tun: true}, nil, common + "--device /dev/net/tun cleat-bench /cleat serve"},
		{"directories", containerSpec{name: "n", share: []string{"/a", "/b/c"}}, nil, common + "--volume /a:/a --volume /b/c:/b/c cleat-bench /cleat serve"},
		{"with input", containerSpec{name: "n", interactive: true}, nil, common + "--interactive cleat-bench /cleat serve"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Join(tt.job.createArgs(lab.Command{Args: []string{selfPath, "serve"}, CPU: tt.cpus}), " ")
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestStartArgs(t *testing.T) {
	if got := strings.Join(containerSpec{name: "n"}.startArgs(), " "); got != "start --attach n" {
		t.Error(got)
	}
	if got := strings.Join(containerSpec{name: "n", interactive: true}.startArgs(), " "); got != "start --attach --interactive n" {
		t.Error(got)
	}
}

func TestExecArgs(t *testing.T) {
	s := containerSpec{name: "n", tun: true, share: []string{"/a"}}
	got := strings.Join(s.execArgs("/tree", lab.Command{Args: []string{selfPath, "serve"}, CPU: []int{1}}), " ")
	want := "--silent exec --cleanenv --no-home --pwd / --no-mount cwd,tmp,bind-paths --no-privs --add-caps CAP_NET_ADMIN" +
		" --bind /a /tree /cleat serve"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDaemonArgs(t *testing.T) {
	r := &Runtime{dir: "/scratch/docker-1", groups: &groups{name: "cleat-bench.1"}}
	d := &docker{client: client{Runtime: r}}
	args := d.daemonArgs()
	for _, want := range [][]string{
		{"--host", "unix:///scratch/docker-1/docker.sock"}, {"--bridge", "none"}, {"--iptables=false"},
		{"--cgroup-parent", "/cleat-bench.1"}, {"--config-file", "/scratch/docker-1/daemon.json"},
	} {
		if i := slices.Index(args, want[0]); i < 0 || !slices.Equal(args[i:i+len(want)], want) {
			t.Errorf("no %v in %v", want, args)
		}
	}
	for _, a := range args {
		if strings.HasPrefix(a, "/") && !strings.HasPrefix(a, r.dir) && a != "/cleat-bench.1" {
			t.Errorf("%s is not the runtime's own", a)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("PATH", "/bin")
	got := environment([]string{"PATH=/bin", "DOCKER_HOST=tcp://192.0.2.1", "CONTAINER_HOST=x", "APPTAINER_BIND=/", "HOME=/root", "LANG=C"}, "/scratch/home")
	want := []string{"-u", "DOCKER_HOST", "-u", "CONTAINER_HOST", "-u", "APPTAINER_BIND", "HOME=/scratch/home", "APPTAINER_CONFIGDIR=/scratch/home/apptainer", "PATH=/bin:/usr/local/sbin:/usr/sbin:/sbin"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestLibraries(t *testing.T) {
	got := libraries("\tlinux-vdso.so.1 (0x00007ffc)\n" +
		"\tlibiperf.so.0 => /lib/x86_64-linux-gnu/libiperf.so.0 (0x00007f1a)\n" +
		"\tlibgone.so.1 => not found\n" +
		"\t/lib64/ld-linux-x86-64.so.2 (0x00007f1b)\n")
	want := []string{"/lib/x86_64-linux-gnu/libiperf.so.0", "/lib64/ld-linux-x86-64.so.2"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := libraries("/bin/static:\n\tnot a dynamic executable\n"); len(got) != 0 {
		t.Errorf("libraries of a static program: %q", got)
	}
}

// TestImage builds an image of this test binary and a program with libraries, and reads
// the archive.
func TestImage(t *testing.T) {
	dynamic, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("sh is not installed")
	}
	r := &Runtime{dir: t.TempDir(), cfg: Config{Share: []string{"/some/where"}, Programs: []string{filepath.Base(dynamic)}}}
	if err := r.buildImage(); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := archive(&packed, r.imageDir()); err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	for in := tar.NewReader(&packed); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[strings.TrimSuffix(h.Name, "/")] = h.Mode
	}
	for _, name := range []string{"cleat", "usr/bin/sh", "etc/passwd", "dev", "some/where"} {
		if _, ok := modes[name]; !ok {
			t.Errorf("no %s in %v", name, modes)
		}
	}
	if modes["cleat"]&0o111 == 0 {
		t.Errorf("cleat has mode %o", modes["cleat"])
	}
	output, _ := exec.Command("ldd", dynamic).Output()
	for _, library := range libraries(string(output)) {
		if _, ok := modes[strings.TrimPrefix(library, "/")]; !ok {
			t.Errorf("no %s, which sh needs", library)
		}
	}
	absent := &Runtime{dir: t.TempDir(), cfg: Config{Programs: []string{"no-such-program"}}}
	if err := absent.buildImage(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("missing program: %v", err)
	}
}

// TestMountScriptWritesNothingElse checks that the script writes only below its first
// argument: until the mounts exist, and if one fails, all other files are the machine's
// own. It checks the text, since running a wrong script would damage the machine.
func TestMountScriptWritesNothingElse(t *testing.T) {
	for _, line := range strings.Split(mountScript, "\n") {
		_, to, writes := strings.Cut(line, ">")
		if writes && !strings.HasPrefix(to, `"$1/`) {
			t.Errorf("the script writes elsewhere: %s", line)
		}
		switch words := strings.Fields(line); {
		case len(words) == 0:
		case slices.Contains([]string{"rm", "mv", "cp", "ln", "touch", "tee"}, words[0]):
			t.Errorf("the script changes files: %s", line)
		case words[0] == "mkdir" && strings.Count(line, `"$1/`) != len(words)-2:
			t.Errorf("the script makes directories elsewhere: %s", line)
		}
	}
}

func TestCgroupRoots(t *testing.T) {
	mounts := filepath.Join(t.TempDir(), "mounts")
	text := "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
	if err := os.WriteFile(mounts, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := cgroupRoots(mounts)
	if want := []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestSweep checks that the groups of dead labs are removed, and those of living ones and
// of others are not. Ordinary directories stand for groups.
func TestSweep(t *testing.T) {
	roots := []string{t.TempDir(), t.TempDir()}
	alive, err := newGroupsIn(roots)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := newGroupsIn(roots)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{
		filepath.Join(roots[0], dead.name, "container", "inner"), filepath.Join(roots[1], alive.name, "container"),
		filepath.Join(roots[1], groupPrefix+"half-gone"), filepath.Join(roots[0], "docker", "container"),
	} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	dead.lock.Close() // as the kernel does for a killed process
	sweep(roots)
	var left []string
	for i, root := range roots {
		found, _ := filepath.Glob(filepath.Join(root, "*"))
		for _, path := range found {
			left = append(left, string("ab"[i])+"/"+filepath.Base(path))
		}
	}
	if want := []string{"a/" + alive.name, "a/docker", "b/" + alive.name}; !slices.Equal(left, want) {
		t.Errorf("groups %q remain, want %q", left, want)
	}
	err = alive.close()
	for _, root := range roots {
		if _, statErr := os.Lstat(filepath.Join(root, alive.name)); err != nil || statErr == nil {
			t.Errorf("close: %v", err)
		}
	}
}

// TestSweepRace checks that a group is made again if it is swept before it is locked.
func TestSweepRace(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, groupPrefix+"1")
	if _, err := lockGroup(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lock a removed group: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	first, err := lockGroup(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := lockGroup(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lock a group that another process locks: %v", err)
	}
}

func TestCheckNeedsARootLab(t *testing.T) {
	if f, _ := lab.Inside(); f == lab.Root {
		t.Setenv("CLEAT_LAB", string(lab.User))
	}
	for _, name := range cell.Runtimes() {
		err := Check(name)
		var lack *link.Lack
		switch {
		case name == cell.Native && err != nil:
			t.Errorf("native: %v", err)
		case name != cell.Native && (!errors.As(err, &lack) || lack.What != name || !strings.Contains(lack.Remedy, "sudo")):
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Check("dokcer"); err == nil {
		t.Error("there is no dokcer")
	}
}

func TestCheckNamesTheMissingProgram(t *testing.T) {
	if f, _ := lab.Inside(); f != lab.Root {
		t.Setenv("CLEAT_LAB", string(lab.Root))
	}
	t.Setenv("PATH", t.TempDir())
	for name, remedy := range map[string]string{"docker": "docker.io", "podman": "podman", "apptainer": "apptainer"} {
		if _, err := program.Find(engines[name].programs[0]); err == nil {
			continue // it is in a directory of administrators' programs
		}
		var lack *link.Lack
		if err := Check(name); !errors.As(err, &lack) || !strings.Contains(lack.Remedy, remedy) ||
			lack.Reason != "the program "+engines[name].programs[0]+" is not installed" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEveryRuntimeHasAnEngine, except the native one.
func TestEveryRuntimeHasAnEngine(t *testing.T) {
	for _, name := range cell.Runtimes() {
		if _, ok := engines[name]; ok == (name == cell.Native) {
			t.Errorf("%s: has an engine: %t", name, ok)
		}
	}
}

// TestRuntimeScript runs the script that dockerd calls, with stand-ins that print their
// arguments.
func TestRuntimeScript(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"runc", "nsenter"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho "+name+" \"$@\"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	script := filepath.Join(dir, "runtime")
	text := strings.NewReplacer("%[1]s", dir, "%[2]s", "/exec/netns/default").Replace(runtimeScript)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, []byte(`{"path":"/exec/netns/default"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	say := func(args ...string) string {
		out, err := exec.Command(script, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := say("--root", "/r", "kill", "c1", "9"); got != "runc --root /r kill c1 9" {
		t.Errorf("kill: %s", got)
	}
	got := say("--root", "/r", "create", "--bundle", dir, "--pid-file", "/p", "c1")
	if want := "nsenter --net=" + dir + "/c1.net -- runc --root /r create --bundle " + dir + " --pid-file /p c1"; got != want {
		t.Errorf("create: got  %s\nwant %s", got, want)
	}
	if pid, ok := readPID(filepath.Join(dir, "c1.shim")); !ok || pid != os.Getpid() {
		t.Errorf("the shim is %d, %t", pid, ok)
	}
	if to, err := os.Readlink(filepath.Join(dir, "c1.pid")); err != nil || to != "/p" {
		t.Errorf("the first process is in %q, %v", to, err)
	}
	if text, _ := os.ReadFile(config); string(text) != `{"path":"`+dir+`/c1.net"}` {
		t.Errorf("config.json is %s", text)
	}
}

// TestChildren also checks that a child of this process may be waited for twice, and that
// an inherited one is reaped.
func TestChildren(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(children(os.Getpid()), cmd.Process.Pid) {
		t.Errorf("%d is not among %v", cmd.Process.Pid, children(os.Getpid()))
	}
	cmd.Process.Signal(unix.SIGKILL)
	cmd.Wait()
	if slices.Contains(children(os.Getpid()), cmd.Process.Pid) {
		t.Error("the child still exists")
	}
}
