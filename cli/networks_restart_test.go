package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// restartRoundsEnv is how often TestRestarts does each thing; default: once. doc/results/networks.md has
// figures of 11 rounds.
const restartRoundsEnv = "CLEAT_RESTART_ROUNDS"

// TestRestarts ends the name server and the keeper, and replaces the program, while a stream runs
// between two containers and one asks for the other's name every 5 ms. The stream goes on, and names
// are back. It logs for how long they were not answered, and what TCP sent again.
func TestRestarts(t *testing.T) {
	onOwnHost(t, "it takes some seconds", restartNetworks)
}

func restartNetworks(t *testing.T) {
	rounds := numberFromEnv(t, restartRoundsEnv, 1)
	mountRun(t)
	h := &killHost{t: t, state: os.Getenv("CLEAT_STATE_DIR")}
	program := h.ownProgram()
	h.do("ip", "link", "set", "lo", "up")
	for _, name := range []string{"a", "b"} {
		h.do("ip", "netns", "add", name)
	}
	h.net("create", "web", "--subnet", "10.20.0.0/24")
	h.net("connect", "web", "a")
	h.net("connect", "web", "b")
	s := startStream(t, "a", "b", "10.20.0.3:80")
	for range rounds {
		for _, event := range []struct {
			name string
			do   func()
		}{
			{"nothing", func() {}},
			{"the name server is killed", func() { _ = syscall.Kill(nameServer(), syscall.SIGKILL) }},
			{"the keeper is killed, and a command starts another", func() {
				h.killKeeper()
				if exec.Command("cleat", "net", "connect", "web", "a").Run() == nil {
					t.Error("a container is on a network twice")
				}
			}},
			{"the program is replaced", func() {
				replaceFile(t, program)
				deadline := time.Now().Add(time.Minute)
				for h.keeper() == 0 || outdated(h.keeper()) || nameServer() == 0 || outdated(nameServer()) {
					if time.Now().After(deadline) {
						log, _ := os.ReadFile(filepath.Join(h.state, "keeper.log"))
						t.Fatalf("keeper %d and name server %d do not go on with the new version:\n%s", h.keeper(), nameServer(), log)
					}
					time.Sleep(10 * time.Millisecond)
				}
			}},
		} {
			sent, again := s.progress()
			gap := longestGap(t, "a", event.do)
			sentNow, againNow := s.progress()
			if sentNow == sent {
				t.Errorf("%s: the stream stands still", event.name)
			}
			t.Logf("%s: %d segments sent again, %d ms without a name", event.name, againNow-again, gap.Milliseconds())
		}
	}
}

// ownProgram makes a copy of the program that the host's commands use from now on, and may be replaced.
func (h *killHost) ownProgram() (path string) {
	from, err := exec.LookPath("cleat")
	if err != nil {
		h.t.Fatal(err)
	}
	dir := h.t.TempDir()
	path = filepath.Join(dir, "cleat")
	h.do("cp", from, path)
	h.t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return path
}

// replaceFile replaces a program by another version of it.
func replaceFile(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path+".new", append(text, 0), 0o755)
	}
	if err = errors.Join(err, os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// outdated reports whether a process runs a program that was replaced.
func outdated(pid int) bool {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err != nil || strings.HasSuffix(path, " (deleted)")
}

// stream is a TCP connection between containers that always has something to send.
type stream struct {
	t    *testing.T
	conn *net.TCPConn
}

func startStream(t *testing.T, from, to, addr string) stream {
	t.Helper()
	in := func(name string, f func() error) {
		t.Helper()
		ns, err := netns.Open("/run/netns/" + name)
		if err == nil {
			err = errors.Join(ns.Do(f), ns.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var l net.Listener
	in(to, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(io.Discard, c)
		}
	}()
	var c net.Conn
	in(from, func() (err error) {
		c, err = net.Dial("tcp", addr)
		return err
	})
	t.Cleanup(func() { c.Close() })
	go func() {
		const pause, bytes = time.Millisecond, 64 << 10 // some 500 Mbit/s
		for text := make([]byte, bytes); ; time.Sleep(pause) {
			if _, err := c.Write(text); err != nil {
				return
			}
		}
	}()
	return stream{t, c.(*net.TCPConn)}
}

// progress returns how many bytes the other end has acknowledged, and how many segments were sent
// again.
func (s stream) progress() (bytes uint64, again uint32) {
	s.t.Helper()
	raw, err := s.conn.SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	var info *unix.TCPInfo
	if err := errors.Join(raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }), err); err != nil {
		s.t.Fatal(err)
	}
	return info.Bytes_acked, info.Total_retrans
}

// longestGap does something while a container asks for the name b every 5 ms, and returns the longest
// time without an answer. It ends when names were answered for two seconds after the event.
func longestGap(t *testing.T, container string, do func()) (longest time.Duration) {
	t.Helper()
	ns, err := netns.Open("/run/netns/" + container)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	const every, steady = 5 * time.Millisecond, 2 * time.Second
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
		err = ns.Do(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, "udp", "10.20.0.1:53")
			return err
		})
		return c, err
	}}
	answered := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 4*every)
		defer cancel()
		all, err := resolver.LookupHost(ctx, "b.web.")
		return err == nil && slices.Equal(all, []string{"10.20.0.3"})
	}
	happened, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		last, since := time.Now(), time.Time{} // since: when answers began to come one after the other, after the event
		for deadline := last.Add(time.Minute); time.Now().Before(deadline); time.Sleep(every) {
			if !answered() {
				since = time.Time{}
				continue
			}
			longest, last = max(longest, time.Since(last)), time.Now()
			select {
			case <-happened:
				if since.IsZero() {
					since = last
				}
			default:
			}
			if !since.IsZero() && time.Since(since) > steady {
				return
			}
		}
		t.Error("no names are answered any more")
	}()
	do()
	close(happened)
	<-ended
	return longest
}
