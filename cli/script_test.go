package cli

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"cleat/internal/program"
	"cleat/lab"

	"github.com/rogpeppe/go-internal/testscript"
)

// binDir has the program as users get it: static, built once for all tests.
var binDir string

// parallelStories is the number of stories that run at the same time. Most of the time they wait
// for other processes.
const parallelStories = 4

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
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, "cleat"), "cleat/cmd/cleat")
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
// which demands an exit code. The conditions are "lab" (a lab works here), "root", "run"
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
