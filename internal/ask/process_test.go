package ask

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cleat/internal/sys/systest"
)

// ways are how a program may be linked: the flag, and whether it has begun by the time
// that it asks.
var ways = map[string]struct {
	flag  string
	begun bool
}{
	"at entry": {"-E=cleat/internal/ask.entry", false},
	"at init":  {"", true},
}

// TestProcess has programs ask, linked both ways, and the keeper say all that it may.
func TestProcess(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no program go")
	}
	for name, way := range ways {
		if !way.begun && runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(t.TempDir(), "cleat")
			if out, err := exec.Command("go", "build", "-ldflags="+way.flag, "-o", program, "./testdata/cleat").CombinedOutput(); err != nil {
				t.Fatalf("build: %v: %s", err, out)
			}
			long := bytes.Repeat([]byte("0123456789abcdef"), MaxPacket/16-1)
			for _, c := range []struct {
				name     string
				says     []string
				code     int
				out, err string
			}{
				{"done", []string{"y", "x\x00well\n"}, 0, "well\n", ""},
				{"failed", []string{"y", "ehint\n", "ebad\n", "x\x02"}, 2, "", "hint\nbad\n"},
				{"much", []string{"y", "o" + string(long), "o" + string(long), "x\x00."}, 0, string(long) + string(long) + ".", ""},
				{"declined", []string{"n"}, 0, "alone\n", ""},
				{"declined later", []string{"y", "n"}, 0, "alone\n", ""},
				{"nothing", nil, 0, "alone\n", ""},
				{"ended", []string{"y"}, 1, "", "cleat: error: the keeper ended in the middle of it\ncleat: hint: `cleat ls` tells what is attached; the next command undoes what is half done\n"},
			} {
				t.Run(c.name, func(t *testing.T) {
					dir, args := t.TempDir(), []string{"attach", "web", "", "bridge"}
					asked := hear(t, dir, c.says)
					code, out, err := execute(t, program, dir, args...)
					if code != c.code || out != c.out || err != c.err {
						t.Errorf("exit %d, said %q and %q; want %d, %q and %q", code, out, err, c.code, c.out, c.err)
					}
					a, _ := asked()
					if !slices.Equal(a.request.Args, args) || a.request.Env["HOME"] != "/nowhere" {
						t.Errorf("asked for %q, with %v", a.request.Args, a.request.Env)
					}
					if a.begun != way.begun {
						t.Errorf("the runtime had begun: %t", a.begun)
					}
				})
			}
			for _, c := range []struct{ name, args string }{{"another command", "keep"}, {"no command", ""}} {
				dir := t.TempDir()
				asked := hear(t, dir, []string{"y", "x\x03"})
				if code, out, _ := execute(t, program, dir, strings.Fields(c.args)...); code != 0 || out != "alone\n" {
					t.Errorf("%s: exit %d, %q", c.name, code, out)
				}
				if _, was := asked(); was {
					t.Errorf("%s: it asked", c.name)
				}
			}
			if code, out, _ := execute(t, program, t.TempDir(), "attach"); code != 0 || out != "alone\n" {
				t.Errorf("nobody is there: exit %d, %q", code, out)
			}
			t.Run("of another user", func(t *testing.T) {
				dir := t.TempDir()
				hearAs(t, dir, 1500, []string{"y", "x\x00\x1b]0;owned\a"})
				if code, out, _ := execute(t, program, dir, "attach"); code != 0 || out != "alone\n" {
					t.Errorf("exit %d, %q", code, out)
				}
			})
			t.Run("silent", func(t *testing.T) {
				dir := t.TempDir()
				l := listen(t, dir)
				defer l.Close()
				if code, out, _ := execute(t, program, dir, "attach"); code != 0 || out != "alone\n" {
					t.Errorf("exit %d, %q", code, out)
				}
			})
		})
	}
}

// asking is what a keeper hears.
type asking struct {
	request Request
	begun   bool // the asker's runtime has: it catches signals
}

// hear is a keeper for one asker, to whom it says these packets. asked ends it.
func hear(t *testing.T, dir string, says []string) (asked func() (a asking, was bool)) {
	t.Helper()
	return serve(listen(t, dir), says)
}

// hearAs is hear of another user's keeper.
func hearAs(t *testing.T, dir string, uid int, says []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for at := filepath.Dir(dir); len(at) > len(os.TempDir()); at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listened := make(chan *net.UnixListener)
	go func() {
		runtime.LockOSThread()
		if err := systest.SetThreadUser(uid); err != nil {
			t.Error(err)
			listened <- nil
			return
		}
		listened <- listen(t, dir)
	}()
	if l := <-listened; l != nil {
		serve(l, says)
	}
}

func listen(t *testing.T, dir string) *net.UnixListener {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, SocketName), Net: "unixpacket"})
	if err != nil {
		t.Error(err)
		return nil
	}
	return l
}

// serve says these packets to one asker.
func serve(l *net.UnixListener, says []string) (asked func() (a asking, was bool)) {
	heard := make(chan asking, 1)
	go func() {
		defer close(heard)
		conn, err := l.AcceptUnix()
		l.Close() // who comes again finds nobody
		if err != nil {
			return
		}
		defer conn.Close()
		b := make([]byte, MaxPacket)
		n, err := conn.Read(b)
		if err != nil {
			return
		}
		var a asking
		a.request, _ = Decode(b[:n])
		a.begun = catches(conn)
		heard <- a
		for _, packet := range says {
			conn.Write([]byte(packet))
		}
	}()
	return func() (asking, bool) {
		l.Close()
		a, was := <-heard
		return a, was
	}
}

// catches tells whether the process at the other end catches a signal.
func catches(conn *net.UnixConn) bool {
	pid, err := peer(conn)
	if err != nil {
		return false
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(status), "SigCgt:\t")
	return !strings.HasPrefix(after, "0000000000000000")
}

func execute(t *testing.T, program, dir string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"HOME=/nowhere", stateEnv + "=" + dir}, &o, &e
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// peer is the process at a connection's other end.
func peer(conn *net.UnixConn) (pid int32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *syscall.Ucred
	if e := raw.Control(func(fd uintptr) { who, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED) }); e != nil || err != nil {
		return 0, errors.Join(e, err)
	}
	return who.Pid, nil
}
