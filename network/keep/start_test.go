package keep

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"cleat/internal/localsock"
	"cleat/network/attach"
	"cleat/network/keep/client"

	"golang.org/x/sys/unix"
)

// A keeper does not hold pipes of the program that has started its caller: it outlives both.
func TestStartInheritsNothing(t *testing.T) {
	store, err := attach.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil { // no O_CLOEXEC: another process gets it
		t.Fatal(err)
	}
	read := os.NewFile(uintptr(pipe[0]), "pipe")
	defer read.Close()
	dir := t.TempDir()
	self := filepath.Join(dir, "keeper")
	if err := os.WriteFile(self, []byte("#!/bin/sh\necho $$ >"+dir+"/pid\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := startSession(store, self, io.Discard); err != nil {
		t.Fatal(err)
	}
	defer func() {
		var pid int
		for range 100 {
			if text, _ := os.ReadFile(dir + "/pid"); len(text) > 0 {
				for _, c := range text[:len(text)-1] {
					pid = 10*pid + int(c-'0')
				}
				_ = syscall.Kill(pid, syscall.SIGKILL)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	unix.Close(pipe[1])
	end := make(chan error, 1)
	go func() {
		_, err := read.Read(make([]byte, 1))
		end <- err
	}()
	select {
	case err := <-end:
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the keeper holds the pipe open")
	}
}

// A keeper that was killed has its lock for a moment yet, and does not pass for one that runs.
func TestRuns(t *testing.T) {
	serve := func(t *testing.T, store *attach.Store, answer string) {
		t.Helper()
		l, err := localsock.ListenFile(store.Path(client.SocketName))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.AcceptUnix()
				if err != nil {
					return
				}
				defer conn.Close()
				if _, err := io.WriteString(conn, answer); err != nil || answer == "ends" {
					conn.Close()
				}
			}
		}()
	}
	for name, tt := range map[string]struct {
		answer string        // of the keeper; "": it does not serve commands
		ends   time.Duration // when it gives its lock up
		want   bool
	}{
		"answers":         {`{"state": "declined"}`, time.Minute, true},
		"silent":          {" ", time.Minute, true},
		"ends":            {"ends", 200 * time.Millisecond, false},
		"without service": {"", 200 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := attach.OpenStore(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if runs(store) {
				t.Error("a keeper runs before any was started")
			}
			unlock, err := lock(store, "999999") // of another process
			if err != nil {
				t.Fatal(err)
			}
			end := time.AfterFunc(tt.ends, unlock)
			defer end.Stop()
			if tt.answer != "" {
				serve(t, store, tt.answer)
			}
			if got := runs(store); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
