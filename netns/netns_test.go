package netns_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"cleat/lab"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func id(t *testing.T, ns *netns.NS) uint64 {
	t.Helper()
	n, err := ns.ID()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func fresh(t *testing.T) *netns.NS {
	t.Helper()
	lab.Need(t)
	ns, err := netns.New("fresh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// TestDo enters a namespace, sees only what is in it, and returns.
func TestDo(t *testing.T) {
	ns := fresh(t)
	before, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := ns.Do(func() error {
		inside, err := netns.Current()
		if err != nil {
			return err
		}
		defer inside.Close()
		if id(t, inside) != id(t, ns) || id(t, inside) == id(t, before) {
			t.Error("not inside")
		}
		links, err := net.Interfaces()
		if len(links) != 1 || links[0].Name != "lo" {
			t.Errorf("links of an empty namespace: %v", links)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	after, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	if id(t, after) != id(t, before) {
		t.Error("did not come back")
	}
}

func TestDoPassesErrorsOn(t *testing.T) {
	want := errors.New("no")
	if err := fresh(t).Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

// A path may lead to a file that somebody else put there. Open must neither wait for the
// other end of a FIFO nor open a device, because that may have effects.
func TestOpenTouchesNothingElse(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		ns, err := netns.Open(fifo)
		if err == nil {
			ns.Close()
		}
		opened <- err
	}()
	// A writer that does not wait finds a reader only if Open has opened the FIFO.
	for done := false; !done; {
		select {
		case err := <-opened:
			if !errors.Is(err, netns.ErrNotFound) {
				t.Errorf("a FIFO: %v", err)
			}
			done = true
		default:
			w, err := unix.Open(fifo, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == nil {
				unix.Close(w)
				t.Fatal("Open opened a FIFO for reading")
			}
			runtime.Gosched()
		}
	}
	link := filepath.Join(dir, "device")
	if err := os.Symlink("/dev/ptmx", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dir, "/proc/self/ns/mnt"} {
		if ns, err := netns.Open(path); !errors.Is(err, netns.ErrNotFound) {
			t.Errorf("%s: %v, %v", path, ns, err)
		}
	}
}

// TestOpen opens a namespace by its paths, and that of a process.
func TestOpen(t *testing.T) {
	ns := fresh(t)
	pin := filepath.Join(t.TempDir(), "pinned")
	if err := ns.Pin(pin); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.Unpin(pin); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(pin); !os.IsNotExist(err) {
			t.Errorf("after Unpin: %v", err)
		}
	}()
	for _, ref := range []string{pin, ns.Path()} {
		got, err := netns.Open(ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		if id(t, got) != id(t, ns) {
			t.Errorf("%s is another namespace", ref)
		}
		got.Close()
	}
	own, err := netns.OfPID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	own.Close()
}

func TestOpenNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		path string
		want error
	}{
		"no such process": {"/proc/4194305/ns/net", os.ErrNotExist}, // above the largest pid_max, 2^22
		"no such path":    {"/nonexistent/net", os.ErrNotExist},
		"another file":    {file, netns.ErrNotFound},
		"another kind":    {"/proc/self/ns/mnt", netns.ErrNotFound},
	} {
		if ns, err := netns.Open(tt.path); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, %v", name, ns, err)
		}
	}
}

func TestPinNeedsAFreshName(t *testing.T) {
	ns := fresh(t)
	taken := filepath.Join(t.TempDir(), "taken")
	if err := os.WriteFile(taken, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ns.Pin(taken); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
	if text, _ := os.ReadFile(taken); string(text) != "mine" {
		t.Error("the file was written over")
	}
}

func TestCloseTwice(t *testing.T) {
	ns := fresh(t)
	for range 2 {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	}
}
