package find

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// listening sends each call into a channel.
func listening(t *testing.T, m *machine) <-chan struct{} {
	t.Helper()
	changes := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- m.listen(ctx, func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return changes
}

// tells waits for a call, and then until there are no more.
func tells(t *testing.T, told <-chan struct{}, what string, within time.Duration) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(within):
		t.Errorf("nothing is told: %s", what)
		return
	}
	for {
		select {
		case <-told:
		case <-time.After(20 * time.Millisecond):
			return
		}
	}
}

// Listen reports an engine's events, and the restored connection to an engine.
func TestListen(t *testing.T) {
	tr := newTree(t)
	tr.env["DOCKER_HOST"] = "unix:///srv/d.sock"
	if err := os.MkdirAll(tr.path("/srv"), 0o755); err != nil {
		t.Fatal(err)
	}
	changes := listening(t, tr.machine)
	tells(t, changes, "that it listens", time.Second)
	events, end := make(chan string), make(chan struct{})
	tr.serve("/srv/d.sock", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/events" {
			t.Errorf("asked for %s", r.URL)
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for {
			select {
			case e := <-events:
				w.Write([]byte(e + "\n"))
				w.(http.Flusher).Flush()
			case <-end:
				return
			case <-r.Context().Done():
				return
			}
		}
	}))
	tells(t, changes, "that the engine is there", listenAgain/2) // by its socket
	events <- `{"Type":"container","Action":"start"}`
	tells(t, changes, "that a container began", time.Second)
	end <- struct{}{}
	tells(t, changes, "that the engine is there again", 2*listenAgain)
}

// Listen reports new entries in the directories of containers, however deep they are.
func TestListenDirs(t *testing.T) {
	for _, path := range []string{
		"/run/netns/web",
		"/run/containers/storage/overlay-containers/cafe01/userdata/pidfile",
		"/run/user/1500/containers/vfs-containers/cafe01/userdata/pidfile",
		"/run/containerd/io.containerd.runtime.v2.task/k8s.io/cafe01/init.pid",
	} {
		t.Run(path, func(t *testing.T) {
			tr := newTree(t)
			tr.write("/run/user/1500/bus", "")
			changes := listening(t, tr.machine)
			tells(t, changes, "that it listens", time.Second)
			tr.write(path, "42")
			tells(t, changes, "that something began", time.Second)
			if err := os.Remove(tr.path(path)); err != nil {
				t.Fatal(err)
			}
			tells(t, changes, "that it ended", time.Second)
			if err := os.RemoveAll(filepath.Dir(tr.path(path))); err != nil {
				t.Fatal(err)
			}
			select { // the removal of the directory may be reported, too
			case <-changes:
			case <-time.After(20 * time.Millisecond):
			}
			tr.write(path, "43")
			tells(t, changes, "that it began again", time.Second)
		})
	}
	t.Run("of a monitor", func(t *testing.T) {
		tr := newTree(t)
		tr.proc(40, proc{comm: "conmon", args: []string{"conmon", "-c", "cafe01", "-p", "/srv/cafe01/pidfile"}})
		tr.write("/srv/cafe01/pidfile", "41")
		changes := listening(t, tr.machine)
		tells(t, changes, "that it listens", time.Second)
		tr.write("/srv/cafe01/pidfile.new", "42")
		tells(t, changes, "that something began", time.Second)
	})
}
