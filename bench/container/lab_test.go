package container_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/bench/benchtest"
	"cleat/bench/cell"
	"cleat/bench/container"
	"cleat/lab"
	"cleat/link"

	"golang.org/x/sys/unix"
)

// TestMain also runs the program in the containers: the image contains a copy of the
// running program, which is this test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "inside" {
		os.Exit(runInside(os.Args[2:]))
	}
	if _, in := lab.Inside(); !in && os.Geteuid() == 0 && os.Getenv(lab.TestFlavour) == "" {
		os.Setenv(lab.TestFlavour, string(lab.Root)) // no engine works in a user lab
	}
	os.Exit(lab.RunTests(m))
}

// facts are what a program in a container finds.
type facts struct {
	Net, PIDs, Mounts string // its namespaces
	Seccomp           string // mode, from /proc/self/status
	Caps              string // effective capabilities
	CPUs              string
	TUN, Shared, Own  bool
	Args              []string
	Input             string
}

// runInside is the program in a container. With "stay" it waits to be killed, with "fail"
// it fails, else it prints its facts. The first argument is the shared directory then.
func runInside(args []string) int {
	switch args[0] {
	case "stay":
		fmt.Println("here")
		time.Sleep(time.Hour)
	case "fail":
		fmt.Fprintln(os.Stderr, "cleat: error: requested")
		return 7
	}
	var f facts
	f.Net, _ = os.Readlink("/proc/self/ns/net")
	f.PIDs, _ = os.Readlink("/proc/self/ns/pid")
	f.Mounts, _ = os.Readlink("/proc/self/ns/mnt")
	f.Args = args
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Seccomp":
			f.Seccomp = strings.TrimSpace(value)
		case "CapEff":
			f.Caps = strings.TrimSpace(value)
		case "Cpus_allowed_list":
			f.CPUs = strings.TrimSpace(value)
		}
	}
	f.TUN = makesTUN()
	if c, err := net.Dial("unix", filepath.Join(args[0], "socket")); err == nil {
		c.Close()
		f.Shared = true
	}
	_, err := os.Stat(filepath.Join(args[0], "../own"))
	f.Own = err == nil
	input, _ := io.ReadAll(os.Stdin)
	f.Input = string(input)
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		return 1
	}
	return 0
}

// makesTUN reports whether the process can make a TUN device.
func makesTUN() bool {
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer tun.Close()
	r, err := unix.NewIfreq("tun%d")
	if err != nil {
		return false
	}
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	return unix.IoctlIfreq(int(tun.Fd()), unix.TUNSETIFF, r) == nil
}

// fixture is an open runtime and a node.
type fixture struct {
	*container.Runtime
	node   *lab.Node
	shared string
}

// forEachRuntime runs a test with every runtime that works here.
func forEachRuntime(t *testing.T, test func(*testing.T, fixture)) {
	lab.Need(t)
	for _, name := range cell.Runtimes() {
		if name == cell.Native {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if err := container.Check(name); err != nil {
				t.Skip(err)
			}
			scratch := benchtest.Scratch(t)
			shared := filepath.Join(scratch, "shared")
			if err := os.Mkdir(shared, 0o700); err != nil {
				t.Fatal(err)
			}
			before := traces(t)
			r, err := container.Open(t.Context(), name, container.Config{Scratch: scratch, Share: []string{shared}})
			var lack *link.Lack
			if errors.As(err, &lack) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			node, err := lab.NewNode("node")
			if err != nil {
				t.Fatal(err)
			}
			test(t, fixture{r, node, shared})
			node.Close()
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			for _, trace := range traces(t) {
				if !slices.Contains(before, trace) {
					t.Errorf("left behind: %s", trace)
				}
			}
		})
	}
}

// traces returns what engines could leave behind: processes, mounts, control groups, and
// files in their usual directories.
func traces(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/cleat-bench.*", "/sys/fs/cgroup/*/cleat-bench.*", "/sys/fs/cgroup/*/libpod*",
		"/run/*", "/run/docker/*", "/run/containerd/*", "/run/containers/*", "/run/libpod/*", "/run/crun/*", "/run/runc/*",
		"/etc/docker/*", "/opt/*", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/cache/containers"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, slices.DeleteFunc(paths, ofAnotherLab)...)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range processes {
		if stat, err := os.ReadFile(path); err == nil {
			words := strings.Fields(string(stat))
			found = append(found, fmt.Sprintf("process %s %s", words[0], words[1]))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return append(found, strings.Split(string(mounts), "\n")...)
}

// ofAnotherLab reports whether a path is a control group of a lab that is alive, which locks
// it in one hierarchy: tests of other packages run beside these.
func ofAnotherLab(path string) bool {
	name := filepath.Base(path)
	if !strings.HasPrefix(name, "cleat-bench.") {
		return false
	}
	all, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	return slices.ContainsFunc(append(all, "/sys/fs/cgroup/"+name), func(dir string) bool {
		f, err := os.Open(dir)
		if err != nil {
			return false
		}
		defer f.Close()
		return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
	})
}

// output runs a program with some input, and returns its output.
func output(t *testing.T, on lab.Runner, cpu []int, input string, args ...string) (out, stderr string, err error) {
	t.Helper()
	var read, write [3]*os.File
	for i := range read {
		if read[i], write[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		defer read[i].Close()
	}
	p, err := on.Start(lab.Command{Args: append([]string{lab.Self, "inside"}, args...), CPU: cpu, Stdin: read[0], Stdout: write[1], Stderr: write[2]})
	write[1].Close()
	write[2].Close()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(write[0], input)
	write[0].Close()
	var both [2][]byte
	var reading sync.WaitGroup
	for i := range both {
		reading.Go(func() { both[i], _ = io.ReadAll(read[i+1]) })
	}
	reading.Wait()
	return string(both[0]), string(both[1]), p.Wait()
}

// netAdmin is CAP_NET_ADMIN, linux/capability.h.
const netAdmin = 12

func TestContainers(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, b fixture) {
		l, err := net.Listen("unix", filepath.Join(b.shared, "socket"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		own := filepath.Join(filepath.Dir(b.shared), "own") // shared with one container only
		if err := os.Mkdir(own, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name string
			o    container.Options
			cpu  []int
		}{
			{"an end", container.Options{}, []int{0}},
			{"a tunnel", container.Options{TUN: true, Share: []string{own}}, nil},
		} {
			out, stderr, err := output(t, b.On(b.node, tt.o), tt.cpu, "from outside", b.shared, "an argument")
			if err != nil {
				t.Fatalf("%s: %v: %s", tt.name, err, stderr)
			}
			var f facts
			if err := json.Unmarshal([]byte(out), &f); err != nil {
				t.Fatalf("%s: %v: %q", tt.name, err, out)
			}
			b.check(t, tt.name, f)
			// Apptainer shows the lab's /dev to every container.
			if want := tt.o.TUN || b.String() == "apptainer"; f.TUN != want || f.Own != want {
				t.Errorf("%s: can make a TUN device: %t; sees its own directory: %t", tt.name, f.TUN, f.Own)
			}
			if len(tt.cpu) > 0 && f.CPUs != "0" {
				t.Errorf("%s: runs on processors %s, want 0", tt.name, f.CPUs)
			}
		}
		if _, stderr, err := output(t, b.On(b.node, container.Options{}), nil, "", "fail"); err == nil || !strings.Contains(stderr, "requested") {
			t.Errorf("a program that fails: %v, %q", err, stderr)
		}
		b.refusesCommands(t)
		b.manyAtOnce(t)
		b.kills(t)
	})
}

// check compares what a program found with what a container must have.
func (b fixture) check(t *testing.T, what string, f facts) {
	t.Helper()
	id, err := b.node.NS.ID()
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("net:[%d]", id); f.Net != want {
		t.Errorf("%s: network %s, want the node's, %s", what, f.Net, want)
	}
	ours, _ := os.Readlink("/proc/self/ns/mnt")
	if f.Mounts == ours {
		t.Errorf("%s: it has the lab's mount namespace", what)
	}
	ours, _ = os.Readlink("/proc/self/ns/pid")
	if daemon := b.String() != "apptainer"; (f.PIDs != ours) != daemon || (f.Seccomp == "2") != daemon {
		t.Errorf("%s: PID namespace %s in the lab's %s, seccomp %s", what, f.PIDs, ours, f.Seccomp)
	}
	if caps, err := strconv.ParseUint(f.Caps, 16, 64); err != nil || caps>>netAdmin&1 == 0 {
		t.Errorf("%s: capabilities %s", what, f.Caps)
	}
	if !f.Shared {
		t.Errorf("%s: can't connect to the socket in the shared directory", what)
	}
	if f.Input != "from outside" || !slices.Equal(f.Args, []string{b.shared, "an argument"}) {
		t.Errorf("%s: input %q, arguments %q", what, f.Input, f.Args)
	}
}

func (b fixture) refusesCommands(t *testing.T) {
	t.Helper()
	on := b.On(b.node, container.Options{})
	if _, err := on.Start(lab.Command{Args: []string{lab.Self}, Extra: []*os.File{os.Stdin}}); err == nil {
		t.Error("a command with an extra descriptor is started")
	}
	if _, err := on.Start(lab.Command{Args: []string{"no-such-program"}}); err == nil || !strings.Contains(err.Error(), "not in the image") {
		t.Errorf("a program that is not in the image: %v", err)
	}
}

func (b fixture) manyAtOnce(t *testing.T) {
	t.Helper()
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			out, stderr, err := output(t, b.On(b.node, container.Options{}), nil, strconv.Itoa(i), b.shared)
			if err != nil || !strings.Contains(out, fmt.Sprintf(`"Input":"%d"`, i)) {
				t.Errorf("container %d: %v: %q %q", i, err, out, stderr)
			}
		})
	}
	running.Wait()
}

// kills kills two programs: one that runs, whose process must be known, and one that is
// just being started.
func (b fixture) kills(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stay := lab.Command{Args: []string{lab.Self, "inside", "stay"}, Stdout: w}
	p, err := b.On(b.node, container.Options{}).Start(stay)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	firstLine := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(r).ReadString('\n')
		firstLine <- line
	}()
	b.checkPID(t, p, firstLine)
	// The lab must see the process, so that its processor time is counted. For Apptainer
	// PID is the starter's.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID()))
	if found := strings.HasSuffix(string(command), "inside\x00stay\x00"); err != nil || found != (b.String() != "apptainer") {
		t.Errorf("process %d is %q, %v", p.PID(), command, err)
	}
	b.ends(t, "a program that stays", p)
	stay.Stdout = nil
	if p, err = b.On(b.node, container.Options{}).Start(stay); err != nil {
		t.Fatal(err)
	}
	b.ends(t, "a program that is being started", p)
}

// checkPID calls PID repeatedly while the program starts. It must never return one of the
// short-lived processes that the engine starts before.
func (b fixture) checkPID(t *testing.T, p lab.Proc, firstLine <-chan string) {
	t.Helper()
	for {
		select {
		case line := <-firstLine:
			if line != "here\n" {
				t.Errorf("it printed %q", line)
			}
			return
		default:
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		// A thread that calls execve leaves a first thread that looks dead; then there
		// are two threads (fields 3 and 20 of proc(5)).
		words := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if err != nil || words[0] == "Z" && words[20-3] == "1" {
			t.Errorf("PID is that of a process that has ended: %s, %v", stat, err)
			return
		}
	}
}

func (b fixture) ends(t *testing.T, what string, p lab.Proc) {
	t.Helper()
	p.Kill()
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Errorf("%s was killed, but its exit status is 0", what)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("%s can't be killed", what)
	}
}

// TestNative checks that programs run on the node itself.
func TestNative(t *testing.T) {
	lab.Need(t)
	set := container.NewSet(container.Config{})
	r, err := set.Take(t.Context(), cell.Native)
	if err != nil || r != nil || r.String() != cell.Native {
		t.Fatalf("%v, %v", r, err)
	}
	n, err := lab.NewNode("node")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if on := r.On(n, container.Options{}); on != lab.Runner(n) {
		t.Errorf("it runs on %v, not on the node", on)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

// TestAbsent checks that each Take of a runtime that can't be opened returns a
// *link.Lack.
func TestAbsent(t *testing.T) {
	lab.Need(t)
	t.Setenv("PATH", t.TempDir())
	set := container.NewSet(container.Config{Scratch: t.TempDir()})
	for range 2 {
		var lack *link.Lack
		if _, err := set.Take(t.Context(), "apptainer"); !errors.As(err, &lack) {
			t.Errorf("got %v", err)
		}
	}
}
