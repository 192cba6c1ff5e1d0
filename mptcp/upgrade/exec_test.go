package upgrade_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cleat/lab/labtest"
	"cleat/mptcp/upgrade"

	"golang.org/x/sys/unix"
)

// guests are programs that run upgraded. Their output is compared.
var guests = map[string]func() error{
	"protocols": sayProtocols,
	"many":      makeMany,
	"talk":      talk,
	"wait":      waitForEnd,
	"limit":     runIntoLimit,
	"detach":    detach,
	"linger":    linger,
}

// protocol returns the protocol of a socket, and whether it closes on exec.
func protocol(family, kind, proto int) string {
	fd, err := unix.Socket(family, kind, proto)
	if err != nil {
		return err.Error()
	}
	defer unix.Close(fd)
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return err.Error()
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil {
		return err.Error()
	}
	status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err.Error()
	}
	words := []string{strconv.Itoa(n)}
	if flags&unix.FD_CLOEXEC != 0 {
		words = append(words, "cloexec")
	}
	if status&unix.O_NONBLOCK != 0 {
		words = append(words, "nonblock")
	}
	return strings.Join(words, " ")
}

func sayProtocols() error {
	for _, p := range []string{
		protocol(unix.AF_INET, unix.SOCK_STREAM, 0),
		protocol(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP),
		protocol(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0),
		protocol(unix.AF_INET, unix.SOCK_DGRAM, 0),
		protocol(unix.AF_INET, unix.SOCK_STREAM, 99),
	} {
		fmt.Println(p)
	}
	return nil
}

const (
	wantUpgraded = "262\n262 cloexec\n262 nonblock\n17\nprotocol not supported\n"
	wantTCP      = "6\n6 cloexec\n6 nonblock\n17\nprotocol not supported\n"
)

func TestSockets(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name string
		args []string
		how  string
		want string
	}{
		{"of the program", guest("protocols"), "exec", wantUpgraded},
		{"of a grandchild", append([]string{"sh", "-c", `sh -c '"$@"; true' - "$@"; true`, "-"}, guest("protocols")...), "exec", wantUpgraded},
		{"in another network namespace", append([]string{"unshare", "--net"}, guest("protocols")...), "exec", wantUpgraded},
		{"below another", guest("protocols"), "twice", wantUpgraded},
		{"where MPTCP is off", append([]string{"unshare", "--net", "sh", "-c", `echo 0 > /proc/sys/net/mptcp/enabled; exec "$@"`, "-"}, guest("protocols")...), "exec", wantTCP},
		{"where MPTCP is off, strictly", append([]string{"unshare", "--net", "sh", "-c", `echo 0 > /proc/sys/net/mptcp/enabled; exec "$@"`, "-"}, guest("protocols")...), "strict",
			strings.Repeat("protocol not available\n", 3) + "17\nprotocol not supported\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := upgraded(patience(t), tt.how, tt.args...)
			if tt.how == "twice" {
				cmd = upgraded(patience(t), "exec", append([]string{"env", execEnv + "=exec", self()}, tt.args...)...)
			}
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != tt.want {
				t.Errorf("printed %q, %v; want %q", out, err, tt.want)
			}
		})
	}
}

// Foreign programs, one of them statically linked: what they connect and accept is MPTCP
// at both ends, without fallback.
func TestOthersPrograms(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"busybox, static", []string{"busybox", "nc", "192.0.2.1"}},
		{"python3", []string{"python3", "-c", "import socket,sys; s=socket.create_connection((sys.argv[1], int(sys.argv[2]))); s.sendall(sys.stdin.buffer.read()); s.shutdown(1); print(s.recv(99).decode(), end='')", "192.0.2.1"}},
		{"Go", append(guest("talk"), "192.0.2.1")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			labtest.Outside(t, "192.0.2.1")
			if _, err := exec.LookPath(tt.args[0]); err != nil {
				t.Skip(err)
			}
			accepted := make(chan string, 1)
			port := serveMPTCP(t, accepted)
			cmd := upgraded(patience(t), "strict", append(tt.args, strconv.Itoa(port))...)
			cmd.Stdin = strings.NewReader("ahoy")
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != "heard" {
				t.Errorf("the program printed %q, %v", out, err)
			}
			if got := <-accepted; got != "ahoy by MPTCP" {
				t.Errorf("the server got %q", got)
			}
		})
	}
}

// serveMPTCP serves one client, and returns what it received and over which protocol.
func serveMPTCP(t *testing.T, accepted chan<- string) int {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(true)
	l, err := lc.Listen(t.Context(), "tcp", "192.0.2.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			accepted <- err.Error()
			return
		}
		defer c.Close()
		answer := make([]byte, 4)
		_, err = io.ReadFull(c, answer)
		how := fmt.Sprint(" by TCP ", err)
		if is, err := c.(*net.TCPConn).MultipathTCP(); is && err == nil {
			how = " by MPTCP"
		}
		accepted <- string(answer) + how
		io.WriteString(c, "heard")
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// talk is a Go program that knows nothing of MPTCP.
func talk() error {
	d := net.Dialer{}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", net.JoinHostPort(os.Args[1], os.Args[2]))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.Copy(c, os.Stdin); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}

// makeMany creates sockets on several threads while signals arrive, as the Go runtime
// sends them to itself: each is one MPTCP socket, and no descriptor is left over.
func makeMany() error {
	stop := make(chan struct{})
	var signals, threads sync.WaitGroup
	signals.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				unix.Kill(os.Getpid(), unix.SIGURG)
			}
		}
	})
	signal.Notify(make(chan os.Signal, 1), syscall.SIGURG)
	before := descriptors()
	var mu sync.Mutex
	var wrong error
	for range 4 {
		threads.Go(func() {
			for range 500 {
				if got := protocol(unix.AF_INET, unix.SOCK_STREAM, 0); got != "262" {
					mu.Lock()
					wrong = errors.Join(wrong, errors.New(got))
					mu.Unlock()
				}
			}
		})
	}
	threads.Wait()
	close(stop)
	signals.Wait()
	if after := descriptors(); after != before {
		wrong = errors.Join(wrong, fmt.Errorf("%d descriptors before, %d after", before, after))
	}
	return wrong
}

func descriptors() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

func TestManySocketsUnderSignals(t *testing.T) {
	need(t)
	if out, err := upgraded(patience(t), "exec", guest("many")...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// runIntoLimit has no free descriptor.
func runIntoLimit() error {
	limit := unix.Rlimit{Cur: uint64(descriptors()), Max: 64}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for range 20 {
		if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
			fmt.Println(err)
			return nil
		}
	}
	return errors.New("no limit")
}

func TestDescriptorLimit(t *testing.T) {
	need(t)
	out, err := upgraded(patience(t), "exec", guest("limit")...).CombinedOutput()
	if want := unix.EMFILE.Error() + "\n"; err != nil || string(out) != want {
		t.Errorf("printed %q, %v; want %q", out, err, want)
	}
}

// The program keeps the process that was started: its exit status is its own, and it has
// no children that it did not create.
func TestEnd(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name, script string
		want         int
		signal       syscall.Signal
	}{
		{"exit code", "exit 7", 7, 0},
		{"signal", "kill -TERM $$", -1, syscall.SIGTERM},
		{"children", "read -r all </proc/$$/task/$$/children; test -z \"$all\"", 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := upgraded(patience(t), "exec", "bash", "-c", tt.script)
			err := cmd.Run()
			if got := code(err); got != tt.want {
				t.Errorf("exit code %d, %v; want %d", got, err, tt.want)
			}
			if s := cmd.ProcessState.Sys().(syscall.WaitStatus); tt.signal != 0 && s.Signal() != tt.signal {
				t.Errorf("ended by %v, want %v", s.Signal(), tt.signal)
			}
		})
	}
}

// waitForEnd prints a line, and lives until its standard input ends.
func waitForEnd() error {
	fmt.Println("ready", protocol(unix.AF_INET, unix.SOCK_STREAM, 0))
	_, err := io.Copy(io.Discard, os.Stdin)
	fmt.Println(protocol(unix.AF_INET, unix.SOCK_STREAM, 0))
	return err
}

// supervisors returns the supervisor processes in this lab.
func supervisors(t *testing.T) []int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range all {
		if text, _ := os.ReadFile(path); bytes.Contains(text, []byte("(supervisor)")) {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// waiting starts a waiting program with its supervisor. finish lets it end, and returns
// its output.
func waiting(t *testing.T) (pid int, finish func() string) {
	t.Helper()
	cmd := upgraded(patience(t), "exec", guest("wait")...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("ready 262\n"))
	if _, err := io.ReadFull(stdout, first); err != nil || string(first) != "ready 262\n" {
		t.Fatalf("the program said %q, %v", first, err)
	}
	return cmd.Process.Pid, func() string {
		stdin.Close()
		rest, err := io.ReadAll(stdout)
		if err := errors.Join(err, cmd.Wait()); err != nil {
			t.Errorf("the program ended with %v", err)
		}
		return string(rest)
	}
}

// holds reports whether a process holds a descriptor of a kind.
func holds(t *testing.T, pid int, kind string) bool {
	t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(all) < 3 {
		t.Fatalf("descriptors of process %d: %v, %v", pid, all, err)
	}
	for _, fd := range all {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, kind) { // it was closed meanwhile
			return true
		}
	}
	return false
}

// The supervisor holds none of the program's files, is in no session or process group of
// the program, ignores requests to end, and ends with the program.
func TestSupervisorsLife(t *testing.T) {
	need(t)
	until(t, "no supervisor is left of before", func() bool { return len(supervisors(t)) == 0 })
	program, finish := waiting(t)
	all := supervisors(t)
	if len(all) != 1 {
		t.Fatalf("supervisors %v, want one", all)
	}
	pid := all[0]
	ours, err1 := unix.Getsid(program)
	its, err2 := unix.Getsid(pid)
	if ours == its || err1 != nil || err2 != nil {
		t.Errorf("sessions %d and %d, %v, %v", ours, its, err1, err2)
	}
	for _, fd := range []string{"0", "1", "2"} {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd)); to != os.DevNull {
			t.Errorf("its descriptor %s is %s, %v", fd, to, err)
		}
	}
	until(t, "it holds no socket and no pipe", func() bool { return !holds(t, pid, "socket:") && !holds(t, pid, "pipe:") })
	if to, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); to != "/" {
		t.Errorf("it is in %s, %v", to, err)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		unix.Kill(pid, s)
	}
	if got := finish(); got != "262\n" {
		t.Errorf("after signals to the supervisor, socket: %q", got)
	}
	until(t, "the supervisor ends", func() bool { return len(supervisors(t)) == 0 })
}

// Without its supervisor, a program gets an error at once and does not hang.
func TestSupervisorKilled(t *testing.T) {
	need(t)
	until(t, "no supervisor is left of before", func() bool { return len(supervisors(t)) == 0 })
	_, finish := waiting(t)
	for _, pid := range supervisors(t) {
		unix.Kill(pid, unix.SIGKILL)
	}
	until(t, "it is gone", func() bool { return len(supervisors(t)) == 0 })
	if got, want := finish(), unix.ENOSYS.Error()+"\n"; got != want {
		t.Errorf("socket: %q, want %q", got, want)
	}
}

// detach leaves a process behind that creates a socket after its parent has ended.
func detach() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), guestEnv+"=linger")
	cmd.Stdout = os.Stdout
	return cmd.Start()
}

func linger() error {
	for os.Getppid() != 1 { // the process that adopts orphans in a lab
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	fmt.Println(protocol(unix.AF_INET, unix.SOCK_STREAM, 0))
	return nil
}

func TestOutlivesTheProgram(t *testing.T) {
	need(t)
	out, err := upgraded(patience(t), "exec", guest("detach")...).Output() // until all have closed it
	if err != nil || string(out) != "262\n" {
		t.Errorf("printed %q, %v; want 262", out, err)
	}
}

// A descriptor that was passed on stays with the program. The supervisor must not hold
// it, or the reader of a pipe would wait for the supervisor.
func TestInheritedFiles(t *testing.T) {
	need(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := upgraded(patience(t), "exec", "bash", "-c", "echo ahoy >&4; exec 4>&-; read", "-")
	cmd.ExtraFiles = []*os.File{nil, w} // avoid the descriptor of the supervisor's socket
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != "ahoy\n" { // while the program lives
		t.Errorf("read %q, %v", got, err)
	}
	stdin.Close()
	if err := cmd.Wait(); code(err) != 1 { // by read, at the end of its input
		t.Errorf("the program ended with %v, and not by itself", err)
	}
}

func TestStartError(t *testing.T) {
	need(t)
	file := filepath.Join(t.TempDir(), "noformat")
	if err := os.WriteFile(file, []byte("\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := upgraded(patience(t), "exec", file).CombinedOutput()
	if code(err) != 99 || !strings.Contains(string(out), unix.ENOEXEC.Error()) {
		t.Errorf("%v: %s", err, out)
	}
	until(t, "its supervisor ends", func() bool { return len(supervisors(t)) == 0 })
}

func TestCheckWhereItIsOff(t *testing.T) {
	need(t)
	before, err := os.ReadFile("/proc/sys/net/mptcp/enabled")
	if err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile("/proc/sys/net/mptcp/enabled", before, 0)
	if err := os.WriteFile("/proc/sys/net/mptcp/enabled", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	var r *upgrade.Refusal
	if err := upgrade.Check(); !errors.As(err, &r) || !strings.Contains(r.Remedy, "net.mptcp.enabled=1") {
		t.Errorf("got %v, want a Refusal with its remedy", err)
	}
}
