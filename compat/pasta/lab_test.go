package pasta_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/compat/pasta"
	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/netns"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// TestMain makes the test binary behave as pasta when it is called by that name, by run
// or by its own copy.
func TestMain(m *testing.M) {
	sandbox.Init()
	if filepath.Base(os.Args[0]) == "pasta" {
		os.Exit(pasta.Main(os.Args[1:], "test"))
	}
	os.Exit(lab.RunTests(m))
}

// program returns a command that runs pasta, not started.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{"pasta"}, args...)
	return cmd
}

// run runs pasta until it exits, and returns its output and exit code.
func run(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	var b bytes.Buffer
	cmd := program(args...)
	cmd.Stdout, cmd.Stderr = &b, &b // Run waits until no process has the pipes open
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.ExtraFiles = []*os.File{w, w, w, w, w, w, w, w}
	err = cmd.Run()
	w.Close()
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // the helper must have closed this one as well
		t.Error(err)
	}
	exit := new(exec.ExitError)
	if errors.As(err, &exit) {
		return b.String(), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), 0
}

// guest creates a namespace with a name in the file system.
func guest(t *testing.T) (ns *netns.NS, path string) {
	t.Helper()
	labtest.Outside(t)
	ns, err := netns.New("guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	path = filepath.Join(t.TempDir(), "guest")
	if err := ns.Pin(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Unpin(path) })
	return ns, path
}

// helper reads the process id that pasta wrote, and makes sure that the process ends with
// the test. In a lab the test is the parent of all orphans.
func helper(t *testing.T, pidFile string) int {
	t.Helper()
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if unix.Kill(pid, unix.SIGKILL) == nil {
			unix.Wait4(pid, nil, 0, nil)
		}
	})
	return pid
}

// wait waits for the helper to exit.
func wait(t *testing.T, pid int) unix.WaitStatus {
	t.Helper()
	var s unix.WaitStatus
	if _, err := unix.Wait4(pid, &s, 0, nil); err != nil {
		t.Fatalf("wait for helper %d: %v", pid, err)
	}
	return s
}

// ask connects from a namespace and returns the reply.
func ask(in *netns.NS, address string) (answer string, err error) {
	doing := in.Do(func() error {
		c, dialing := net.Dial("tcp", address)
		if err = dialing; err != nil {
			return nil
		}
		defer c.Close()
		b, reading := io.ReadAll(c)
		answer, err = string(b), reading
		return nil
	})
	return answer, errors.Join(doing, err)
}

func current(t *testing.T) *netns.NS {
	t.Helper()
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// until polls until cond holds.
func until(so func() bool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		<-tick.C
	}
}

// status returns a field of /proc/PID/status.
func status(t *testing.T, pid int, field string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

const noForwards = "-t none -u none -T none -U none"

// TestAttach runs pasta as Podman does: it exits with 0 when the network works, having
// printed nothing and closed its streams. The helper is sealed, and ends when the path is
// removed.
func TestAttach(t *testing.T) {
	inside, path := guest(t)
	host := current(t)
	inner := labtest.Serve(t, inside, "0.0.0.0:80", labtest.Reply("inside"))
	outer := labtest.Serve(t, host, "127.0.0.1:0", labtest.Reply("outside"))
	taken := labtest.Serve(t, host, "127.0.0.1:0", labtest.Reply("taken"))
	pidFile := filepath.Join(t.TempDir(), "pid")
	args := fmt.Sprintf("--config-net -t 127.0.0.1/18080:%d -u none -T 15432:%d -U none --quiet --pid %s --netns %s", inner.Port(), outer.Port(), pidFile, path)
	if out, code := run(t, strings.Fields(args)...); code != 0 || out != "" {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	pid := helper(t, pidFile)
	if s, c := status(t, pid, "Seccomp"), status(t, pid, "CapEff"); s != "2" || strings.Trim(c, "0") != "" {
		t.Errorf("the helper is not sealed: seccomp %s, capabilities %s", s, c)
	}

	for _, r := range []struct {
		name    string
		from    *netns.NS
		address string
		want    string
	}{
		{"out to the host's loopback, by the gateway", inside, fmt.Sprintf("169.254.2.2:%d", outer.Port()), "outside"},
		{"in by a forward", host, "127.0.0.1:18080", "inside"},
		{"out by a port of the namespace's loopback", inside, "127.0.0.1:15432", "outside"},
	} {
		if got, err := ask(r.from, r.address); got != r.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", r.name, got, err, r.want)
		}
	}
	if _, err := ask(inside, fmt.Sprintf("127.0.0.1:%d", taken.Port())); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port that is not forwarded: %v, want refusal", err)
	}

	if err := netns.Unpin(path); err != nil {
		t.Fatal(err)
	}
	if s := wait(t, pid); !s.Exited() || s.ExitStatus() != 0 {
		t.Errorf("when the namespace went the helper ended with %#x", s)
	}
	if _, err := ask(host, "127.0.0.1:18080"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a forward of a helper that is gone: %v", err)
	}
}

// TestFollows forwards ports that begin to listen, in both directions, as by default.
func TestFollows(t *testing.T) {
	inside, path := guest(t)
	host := current(t)
	dir := t.TempDir()
	pidFile, log := filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	if out, code := run(t, "--config-net", "-q", "-P", pidFile, "-l", log, "--netns", path); code != 0 || out != "" {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	helper(t, pidFile)
	labtest.Serve(t, host, "0.0.0.0:18080", labtest.Reply("taken"))
	labtest.Serve(t, inside, "0.0.0.0:18080", labtest.Reply("inside, in vain"))
	labtest.Serve(t, inside, "0.0.0.0:18081", labtest.Reply("inside"))
	labtest.Serve(t, host, "127.0.0.1:18082", labtest.Reply("outside"))
	for _, r := range []struct {
		from          *netns.NS
		address, want string
	}{{host, "127.0.0.1:18081", "inside"}, {inside, "127.0.0.1:18082", "outside"}} {
		until(func() bool { // the helper notices after a short time
			got, err := ask(r.from, r.address)
			if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("%s: %q, %v", r.address, got, err)
			}
			return got == r.want
		})
	}
	until(func() bool { // a sealed helper can still see it
		b, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(b), "port=18080") && strings.Contains(string(b), "address already in use")
	})
}

// TestFailures checks exit code and message, and that nothing is left behind.
func TestFailures(t *testing.T) {
	_, path := guest(t)
	taken := labtest.Serve(t, current(t), "127.0.0.1:0", labtest.Reply("taken"))
	dir := t.TempDir()
	rows := []struct{ name, args, text string }{
		{"no such namespace", "--netns " + dir + "/none", "none: no such file or directory"},
		{"no namespace", "--netns " + os.Args[0], "not a network namespace"},
		{"no such process", "999999", "/proc/999999/ns/net: no such file or directory"},
		{"port taken", fmt.Sprintf("-t 127.0.0.1/%d --netns %s", taken.Port(), path), "address already in use"},
		{"no such link", "-i eth7 --netns " + path, `find link "eth7"`},
		{"a device for the process id", "-P /dev/null --netns " + path, "--pid: open /dev/null: not a regular file"},
		{"a directory for the log", "-l " + dir + " --netns " + path, "--log-file: open " + dir},
		{"no directory for the capture", "-p " + dir + "/none/x --netns " + path, "--pcap: open " + dir},
		{"usage", "--bogus", "pasta: unrecognized option '--bogus'\nUsage: pasta"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			args := append(strings.Fields(noForwards), "--config-net", "-q")
			if strings.HasPrefix(r.args, "-t") {
				args = args[2:]
			}
			out, code := run(t, append(args, strings.Fields(r.args)...)...)
			if code != 1 || !strings.Contains(out, r.text) || !strings.HasPrefix(out, "pasta: ") {
				t.Errorf("exit code %d, want 1 and %q:\n%s", code, r.text, out)
			}
			if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
				t.Errorf("a process is left (%v)", err)
			}
		})
	}
}

// TestForeground runs until a signal ends it.
func TestForeground(t *testing.T) {
	_, path := guest(t)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	if err := unix.Mkfifo(filepath.Join(dir, "pcap"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(filepath.Join(dir, "pcap"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cmd := program(append(strings.Fields(noForwards), "--config-net", "-f", "-l", log, "-p", filepath.Join(dir, "pcap"), "-P", filepath.Join(dir, "pid"), "--netns", path)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	magic := make([]byte, 4)
	if _, err := io.ReadFull(reader, magic); err != nil {
		t.Fatal(err)
	}
	until(func() bool {
		info, err := os.Stat(filepath.Join(dir, "pid"))
		return err == nil && info.Size() > 0
	})
	if pid := helper(t, filepath.Join(dir, "pid")); pid != cmd.Process.Pid {
		t.Errorf("process id %d, want %d", pid, cmd.Process.Pid)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	output, err := io.ReadAll(stderr)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended by SIGTERM: %v", err)
	}
	if said := string(output); !strings.Contains(said, "pasta: namespace interface tap0, MAC address ") || !strings.Contains(said, ", MTU 65520\n") {
		t.Errorf("it said:\n%s", output)
	}
	if _, err := os.Stat(log); err != nil {
		t.Error(err)
	}
}

// TestSpawn runs commands, whose end is also pasta's.
func TestSpawn(t *testing.T) {
	labtest.Outside(t)
	t.Setenv("SHELL", "/bin/true")
	rows := []struct {
		name string
		args []string
		out  string
		code int
	}{
		{"exit code", []string{"sh", "-c", "exit 7"}, "", 7},
		{"signal", []string{"sh", "-c", "kill -TERM $$"}, "", 128 + 15},
		{"its own options", []string{"sh", "-c", "echo $0 $1", "-q", "-t"}, "-q -t\n", 0},
		{"root inside", []string{"id", "-u"}, "0\n", 0},
		{"a network", []string{"sh", "-c", "echo /proc/sys/net/ipv4/conf/tap*"}, "/proc/sys/net/ipv4/conf/tap0\n", 0},
		{"no such program", []string{"no-such-program"}, "pasta: start no-such-program: exec: \"no-such-program\": executable file not found in $PATH\n", 1},
		{"a shell", nil, "", 0},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			out, code := run(t, append(append(strings.Fields(noForwards), "--config-net"), r.args...)...)
			if out != r.out || code != r.code {
				t.Errorf("exit code %d, want %d; printed %q, want %q", code, r.code, out, r.out)
			}
		})
	}
}
