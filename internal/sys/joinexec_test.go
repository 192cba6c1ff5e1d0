package sys

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pipe returns a pipe whose ends close on exec.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func wait(t *testing.T, pid int) unix.WaitStatus {
	t.Helper()
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
			if err != nil {
				t.Fatal(err)
			}
			return status
		}
	}
}

func TestJoinExecKeepsOneDescriptor(t *testing.T) {
	r, w := pipe(t)
	_, other := pipe(t)
	fd := int(w.Fd())
	script := "echo $GREETING $0 >&" + strconv.Itoa(fd) + "; echo lost >&" + strconv.Itoa(int(other.Fd())) + " || echo alone >&" + strconv.Itoa(fd)
	pid, err := JoinExec{
		Path: "/bin/sh", Args: []string{"name", "-c", script + " 2>/dev/null", "zero"}, Env: []string{"GREETING=hello"},
		User: -1, Net: -1, Keep: fd,
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	said, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if status := wait(t, pid); status.Signaled() {
		t.Errorf("the child was ended by %v", status.Signal())
	}
	if got := strings.Fields(string(said)); len(got) < 2 || got[0] != "hello" || got[1] != "zero" || strings.Contains(string(said), "lost") {
		t.Errorf("the child said %q", said)
	}
}

func TestJoinExecErrorsNameTheStep(t *testing.T) {
	r, _ := pipe(t)
	keep := int(r.Fd())
	tests := []struct {
		name string
		j    JoinExec
		want string
	}{
		{"no such program", JoinExec{Path: "/no/such/program", User: -1, Net: -1, Keep: keep}, `execute "/no/such/program": no such file or directory`},
		{"not a user namespace", JoinExec{Path: "/bin/sh", User: keep, Net: -1, Keep: keep}, "join user namespace: invalid argument"},
		{"not a network namespace", JoinExec{Path: "/bin/sh", User: -1, Net: keep, Keep: keep}, "join network namespace: invalid argument"},
		{"nothing to keep", JoinExec{Path: "/bin/sh", User: -1, Net: -1, Keep: 1 << 20}, "keep descriptor: bad file descriptor"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.j.Args, tt.j.Env = []string{"name"}, []string{}
			pid, err := tt.j.Start()
			if err == nil {
				wait(t, pid)
				t.Fatal("it started")
			}
			if err.Error() != tt.want {
				t.Errorf("error %q, want %q", err, tt.want)
			}
		})
	}
}

// TestJoinExecManyTimes forks many times while other goroutines run, to expose damage that
// a fork does to the runtime.
func TestJoinExecManyTimes(t *testing.T) {
	r, _ := pipe(t)
	stop := make(chan struct{})
	defer close(stop)
	for range 4 {
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = make([]byte, 1<<12)
				}
			}
		}()
	}
	for range 20 {
		pid, err := JoinExec{Path: "/bin/true", Args: []string{"true"}, Env: []string{}, User: -1, Net: -1, Keep: int(r.Fd())}.Start()
		if err != nil {
			t.Fatal(err)
		}
		if status := wait(t, pid); status.ExitStatus() != 0 {
			t.Fatalf("status %v", status)
		}
	}
}
