package cli

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cleat/internal/program"
	"cleat/lab"

	"github.com/rogpeppe/go-internal/testscript"
)

// binDir has the program as users get it: static, built once for all tests.
var binDir string

// parallelStories is the number of stories that run at the same time. Most of the time they wait
// for other processes.
const parallelStories = 4

// storyLimit bounds the duration of a story. Many wait in loops for what a command started
// before; if that failed, they would wait until all tests time out, and its output would be
// lost. The slowest story takes a minute.
const storyLimit = 5 * time.Minute

var stories atomic.Int32 // number of stories that have started

// TestMain builds cleat. A test binary could not take its place: the program executes itself,
// and is killed by signals.
func TestMain(m *testing.M) {
	if os.Getenv(fakeTunnelEnv) != "" {
		os.Exit(runFakeTunnel(os.Args[1:]))
	}
	if os.Getenv(dhcpServerEnv) != "" {
		os.Exit(runDHCPServer(os.Args[1:]))
	}
	flag.Parse()
	if dir := os.Getenv(killHostEnv); dir != "" {
		binDir = dir
		os.Setenv("PATH", dir+string(os.PathListSeparator)+program.SearchPath())
		os.Exit(m.Run())
	}
	lab.SetParallel(parallelStories)
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "cleat-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		// other users run it, too
		if err := os.Chmod(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir, "cleat/cmd/cleat", "cleat/cmd/cleat-cni")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintf(os.Stderr, "build cleat: %v\n", err)
			return 1
		}
		binDir = dir
		for _, write := range []func(string) error{writeAsUser, writeFakeTunnel, writeDHCPServer} {
			if err := write(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return m.Run()
	}())
}

// TestScript runs the stories in testdata/script, one in a file: commands with their
// output and exit codes. Beside testscript's own commands there is
//
//	exits CODE PROGRAM [ARG…]
//
// which demands an exit code. The variables NAME and LOOPBACK are a name and a loopback
// address that no other story uses, not even one of another run of the tests on the same
// machine. A story that takes longer than storyLimit fails. The conditions are "lab" (a lab works here), "root", "run"
// (`cleat run` works here), "supervise" (so does its seccomp tier), "contain" (containers
// of Podman work) and "user" (the script as-user works, which runs a command as an
// ordinary user).
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", binDir+string(os.PathListSeparator)+program.SearchPath())
			story, run := stories.Add(1), os.Getpid()
			e.Setenv("NAME", fmt.Sprintf("story-%d-%d", run, story))
			e.Setenv("LOOPBACK", fmt.Sprintf("127.%d.%d.%d", 64+story%128, run>>8&0xff, run&0xff))
			timer := time.AfterFunc(storyLimit, func() {
				fmt.Fprintf(os.Stderr, "%s: killed after %s\n", filepath.Base(e.WorkDir), storyLimit)
				killAll("WORK=" + e.WorkDir)
			})
			e.Defer(func() { timer.Stop() })
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "run":
				return canRun(), nil
			case "supervise":
				return canSupervise(), nil
			case "user":
				return canBeUser(), nil
			case "contain":
				return canContain(), nil
			case "lab":
				return exec.Command(filepath.Join(binDir, "cleat"), "bench", "list").Run() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG…]")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("exit code %q: %v", args[0], err)
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("run %q: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%q exited with %d, want %d", args[1:], got, want)
	}
}

// killAll kills all processes whose environment contains the variable. testscript would
// kill only the command of the story's line; its descendants would keep its output open,
// and testscript would wait for them.
func killAll(variable string) {
	for found := true; found; time.Sleep(10 * time.Millisecond) { // until none has started another
		found = false
		files, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, f := range files {
			env, err := os.ReadFile(f) // a zombie's is empty
			if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), variable) {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				found = true
			}
		}
	}
}

func TestKillAll(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	variable := "WORK=" + t.TempDir()
	cmd := exec.Command("sh", "-c", "(until false; do sleep 0.01; done) & until false; do sleep 0.01; done")
	cmd.Env, cmd.Stdout = append(os.Environ(), variable), w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	killAll(variable)
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
		t.Errorf("ended with %v, want killed", err)
	}
	r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("a descendant is alive: %v", err)
	}
}

// A stopped command has the exit code that shells use.
func TestStoppedCommandsExitCode(t *testing.T) {
	for _, tt := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, 130}, {syscall.SIGTERM, 143}} {
		t.Run(tt.signal.String(), func(t *testing.T) {
			cmd := exec.Command(filepath.Join(binDir, "cleat"), "traffic", "serve", "--listen", "127.0.0.1:0")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it listens
				t.Errorf("the server says nothing: %v", err)
			}
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != tt.code {
				t.Errorf("ended with %v, want exit code %d", err, tt.code)
			}
		})
	}
}
