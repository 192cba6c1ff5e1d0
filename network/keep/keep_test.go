package keep_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/network/attach"
	"cleat/network/keep"
	"cleat/network/segment"

	"golang.org/x/sys/unix"
)

// A container that restarts is attached at once: because its engine reports the start, or
// because its first process has ended.
func TestRestart(t *testing.T) {
	t.Parallel() // it waits most of the time
	w := newFakeHost(t)
	process := exec.Command("sleep", "1000")
	must(t, process.Start())
	w.start("web", process.Process.Pid)
	w.attach("web", "192.0.2.10/24")
	tell, _ := w.keeper(w.keep())
	w.stop("web")
	must(t, process.Process.Kill())
	process.Wait()
	time.Sleep(8500 * time.Millisecond) // by now it is looked for every few seconds
	w.mu.Lock()
	if w.asked > 100 { // some 30
		t.Errorf("the container was looked for %d times", w.asked)
	}
	w.mu.Unlock()
	w.start("web", 0)
	tell()
	t.Logf("attached %s after its engine's event", w.attached("web", soon))
	w.eventually("its last action is reported", soon, func() bool {
		r := w.status("web").Keeper
		return r != nil && strings.HasPrefix(r.Action, "attached again") && !r.ActionTime.IsZero()
	})
}

// A container is looked for when its first process ends, whatever engines report.
func TestInitProcessEnds(t *testing.T) {
	w := newFakeHost(t)
	process := exec.Command("sleep", "1000")
	must(t, process.Start())
	w.start("web", process.Process.Pid)
	w.attach("web", "192.0.2.10/24")
	w.keeper(w.keep())
	w.eventually("it is attached", soon, func() bool { return w.status("web").State == attach.Attached })
	time.Sleep(100 * time.Millisecond)
	w.stop("web")
	w.start("web", 0)
	must(t, process.Process.Kill())
	process.Wait()
	t.Logf("attached %s after its end", w.attached("web", soon))
}

// A link that somebody removed is recreated at once, and after pauses if it is removed
// again and again.
func TestRemoved(t *testing.T) {
	w := newFakeHost(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	w.keeper(w.keep())
	time.Sleep(200 * time.Millisecond) // until the namespace has a number
	remove := func() {
		t.Helper()
		eth0, err := link.Find(w.running["web"], "eth0")
		must(t, err)
		must(t, eth0.Close())
	}
	for i, least := range []time.Duration{0, 0, 900 * time.Millisecond} {
		before := w.status("web").Index
		began := time.Now()
		remove()
		w.eventually("it is recreated", soon+least, func() bool { s := w.status("web"); return s.State == attach.Attached && s.Index != before })
		if took := time.Since(began); took < least || least == 0 && took > soon {
			t.Errorf("removal %d: recreated after %s", i+1, took)
		}
		time.Sleep(50 * time.Millisecond)
	}
	must(t, w.host.Do(func() error { _, _, err := attach.Detach(t.Context(), w.config(), "web", "eth0"); return err }))
	time.Sleep(300 * time.Millisecond)
	if s := w.status("web"); s.State != "" {
		t.Errorf("state %s after it was detached", s.State)
	}
}

// An engine that does not answer delays no other attachment.
func TestStuckEngine(t *testing.T) {
	w := newFakeHost(t)
	stuck := make(chan struct{})
	for i, name := range []string{"web", "db"} {
		w.start(name, 0)
		w.attach(name, fmt.Sprintf("192.0.2.%d/24", 10+i))
		w.stop(name)
	}
	w.stuck["web"] = stuck
	tell, stop := w.keeper(w.keep())
	w.start("db", 0)
	w.start("web", 0)
	tell()
	w.attached("db", soon)
	if s := w.status("web").State; s != attach.Gone {
		t.Errorf("web is %s", s)
	}
	close(stuck)
	w.attached("web", soon)
	must(t, stop())
}

// Unreadable files are logged once, and damaged journals reported. Other attachments are
// kept.
func TestUnreadable(t *testing.T) {
	w := newFakeHost(t)
	for i, name := range []string{"web", "db", "cut"} {
		w.start(name, 0)
		w.attach(name, fmt.Sprintf("192.0.2.%d/24", 10+i))
	}
	find := func(pattern string) string {
		t.Helper()
		all, err := filepath.Glob(w.store.Path(pattern))
		must(t, err)
		if len(all) != 1 {
			t.Fatalf("%s: %q", pattern, all)
		}
		return all[0]
	}
	must(t, os.Remove(find("run/*/live/docker.web.eth0")))
	file := find("attachments/docker.web.eth0.json")
	must(t, os.WriteFile(file, nil, 0o644))
	must(t, os.Truncate(find("run/*/live/docker.cut.eth0"), 0))
	w.stop("db")
	tell, _ := w.keeper(w.keep())
	w.start("db", 0)
	tell()
	w.attached("db", soon)
	w.eventually("the damaged journal is reported", soon, func() bool {
		r := w.status("cut").Keeper
		return r != nil && strings.Contains(r.Error, "is damaged")
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := strings.Join(w.log, "\n"); strings.Count(text, "not kept: ") != 1 || !strings.Contains(text, file) {
		t.Errorf("the keeper logged %q", w.log)
	}
}

// A file that becomes unreadable while a keeper runs is logged. Once it can be read
// again, the attachment is kept.
func TestUnreadableMeanwhile(t *testing.T) {
	w := newFakeHost(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	tell, stop := w.keeper(w.keep())
	file := w.store.Path("attachments", "docker.web.eth0.json")
	must(t, os.Rename(file, file+".old"))
	must(t, os.WriteFile(file+".new", []byte("{"), 0o644))
	must(t, os.Rename(file+".new", file))
	w.eventually("it is logged", soon, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Contains(strings.Join(w.log, "\n"), "not kept: ")
	})
	must(t, os.Rename(file+".old", file))
	w.stop("web")
	w.start("web", 0)
	tell()
	w.attached("web", soon)
	must(t, stop())
}

// Addresses are announced a second time, 2 s after the first (RFC 5227 section 2.3).
func TestAnnouncedTwice(t *testing.T) {
	t.Parallel()
	w := newFakeHost(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	br0, err := link.Find(w.host, "br0")
	must(t, err)
	s, err := segment.Open(segment.Link{NS: br0.NS(), Index: br0.Index()}, unix.ETH_P_ARP, nil)
	must(t, err)
	defer s.Close()
	w.keeper(w.keep())
	began := time.Now()
	buf := make([]byte, 1500)
	for {
		n, _, err := s.Receive(t.Context(), buf, began.Add(5*time.Second))
		if err != nil {
			t.Fatalf("no announcement: %v", err)
		}
		if sender, _ := netip.AddrFromSlice(buf[14:18]); n >= 28 && sender == netip.MustParseAddr("192.0.2.10") && time.Since(began) > time.Second {
			t.Logf("announced after %s", time.Since(began))
			return
		}
	}
}

// A keeper with UntilIdle ends when nothing is left to keep.
func TestIdle(t *testing.T) {
	w := newFakeHost(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	c := w.keep()
	c.UntilIdle = true
	ended := make(chan error, 1)
	go func() { ended <- w.host.Do(func() error { return keep.Run(t.Context(), c) }) }()
	<-w.tell
	select {
	case err := <-ended:
		t.Fatalf("the keeper has ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	must(t, w.host.Do(func() error { _, _, err := attach.Detach(t.Context(), w.config(), "web", "eth0"); return err }))
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(5 * time.Second):
		t.Error("the keeper does not end")
	}
}

// opened returns a function that reports whether a file was opened since its last call.
func opened(t *testing.T, path string) func() bool {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_OPEN)
	must(t, err)
	return func() bool {
		n, _ := unix.Read(fd, make([]byte, 1<<12))
		return n > 0
	}
}

// When any container starts or ends, a keeper looks at none whose namespace is still there, as its file shows.
func TestNamespaceIsThere(t *testing.T) {
	w := newFakeHost(t)
	w.start("web", 0)
	w.attach("web", "192.0.2.10/24")
	all, err := w.store.Attachments()
	must(t, err)
	all[0].Created = all[0].Created.Add(-time.Hour) // it is not announced again
	must(t, statedir.WriteJSON(w.store.Path("attachments", all[0].ID+".json"), all[0]))
	looked := opened(t, w.store.RunPath("live", all[0].ID))
	tell, _ := w.keeper(w.keep())
	eventually := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	eventually("the keeper does not look at a container", looked)
	eventually("the keeper looks again and again", func() bool { time.Sleep(500 * time.Millisecond); return !looked() })
	for range 5 {
		tell()
		time.Sleep(20 * time.Millisecond)
	}
	if looked() {
		t.Error("the keeper looks at a container that has not changed")
	}
	w.stop("web")
	eventually("the keeper does not look at a container that has ended", func() bool { tell(); return looked() })
}
