package find

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// listenAgain is the time after which a lost engine is tried again, unless its socket
// reappears before. In that case the first retry is after listenSoon, and the time
// doubles after each.
const (
	listenAgain = 2 * time.Second
	listenSoon  = 5 * time.Millisecond
)

// Listen calls tell whenever a container of this machine may have started or ended, until
// ctx ends. It says no more than that; the caller looks for itself. Docker, and an engine
// that CONTAINER_HOST names, send events. For Podman, containerd and named namespaces,
// Listen watches the directories in which each start leaves an entry. LXC and Apptainer
// send nothing. Other users' engines are not watched: the owner of a directory can make a
// watcher wait, or wake it all the time. Listen also calls tell when the connection to an
// engine is restored, because events may have been missed. tell is called from several
// goroutines and must not block. If directories cannot be watched, Listen returns an
// error when ctx ends, and still receives engines' events.
func Listen(ctx context.Context, tell func()) error { return thisMachine(nil).listen(ctx, tell) }

func (m *machine) listen(ctx context.Context, tell func()) error {
	var all sync.WaitGroup
	defer all.Wait()
	var heard []listener
	mine := scope{m: m}
	for _, a := range append(mine.dockers(), mine.podmans(newMonitors(m))...) {
		if e, is := a.source.(api); is {
			l := listener{api: e, tell: tell, appeared: make(chan struct{}, 1)}
			heard = append(heard, l)
			all.Go(func() { l.run(ctx) })
		}
	}
	return m.watchDirs(ctx, heard, tell)
}

type listener struct {
	api
	tell     func()
	appeared chan struct{} // signals that its socket may exist now
}

func (l listener) run(ctx context.Context) {
	again := listenAgain
	for ctx.Err() == nil {
		if l.hear(ctx) {
			again = listenAgain
		}
		select {
		case <-ctx.Done():
		case <-l.appeared:
			again = listenSoon // a socket has its name before anybody listens
		case <-time.After(again):
			again = min(2*again, listenAgain)
		}
	}
}

// hear calls tell for each event until the engine ends. It returns false if the engine
// cannot be reached. Events are not parsed, because the request selects the relevant
// ones.
func (l listener) hear(ctx context.Context) bool {
	c, err := l.talk(ctx)
	if err != nil {
		return false
	}
	defer c.client.CloseIdleConnections()
	ask := url.Values{"filters": {`{"type":["container"],"event":["start","die","rename"]}`}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/events?"+ask.Encode(), nil)
	if err != nil {
		return false
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false
	}
	l.tell()
	for buf := make([]byte, 4096); ; {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			l.tell()
		}
		if err != nil {
			return true
		}
	}
}

// watchMask selects what happens in a directory when a container starts or ends.
const watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_ONLYDIR

// watchedDirs returns the existing directories in which containers' own directories
// appear, and those above them. The value reports whether entries in a directory are
// about containers.
func (m *machine) watchedDirs(heard []listener) map[string]bool {
	dirs := map[string]bool{}
	for _, l := range heard {
		dirs[filepath.Dir(l.socket)] = false
	}
	add := func(base, storage string) {
		dirs[base], dirs[base+"/containers"], dirs[base+"/containerd"] = false, false, false
		dirs[storage], dirs[base+"/containerd"+taskDir] = false, false
		for _, pattern := range []string{storage + "/*-containers", storage + "/*-containers/*", storage + "/*-containers/*/userdata",
			base + "/containerd" + taskDir + "/*", base + "/containerd" + taskDir + "/*/*"} {
			for _, dir := range m.glob(pattern) {
				dirs[dir[len(m.root):]] = true
			}
		}
	}
	add("/run", "/run/containers/storage")
	dirs["/run/netns"] = true
	mine := scope{m: m}
	for _, dir := range mine.runtimeDirs() {
		add(dir.path, dir.path+"/containers")
	}
	// Podman may be configured for other directories.
	monitors, _ := newMonitors(m).called(mine, conmonNames...) // an error is the same as none
	for _, c := range monitors {
		if file := c.option("-p"); filepath.IsAbs(file) {
			dirs[filepath.Dir(file)] = true
		}
	}
	return dirs
}

// watchDirs calls tell for events in the directories, and triggers a retry of engines
// whose sockets appear.
func (m *machine) watchDirs(ctx context.Context, heard []listener, tell func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch directories: %w", err)
	}
	w := dirWatch{m: m, fd: fd, dirs: map[int32]string{}, heard: heard}
	file := os.NewFile(uintptr(fd), "inotify")
	defer file.Close()
	defer context.AfterFunc(ctx, func() { file.SetReadDeadline(time.Unix(1, 0)) })() // interrupts the reader
	w.scan()
	tell()
	for buf := make([]byte, 64<<10); ; {
		n, err := file.Read(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch directories: %w", err)
		}
		if w.take(buf[:n]) {
			tell()
		}
	}
}

// dirWatch is an inotify(7) instance.
type dirWatch struct {
	m     *machine
	fd    int
	dirs  map[int32]string // by watch descriptor
	about map[string]bool  // result of watchedDirs
	heard []listener
}

// scan watches all directories that exist now, and reports whether there are new ones.
// Watching a directory twice has no effect.
func (w *dirWatch) scan() (more bool) {
	w.about = w.m.watchedDirs(w.heard)
	for dir := range w.about {
		wd, err := unix.InotifyAddWatch(w.fd, w.m.path(dir), watchMask)
		if err != nil {
			continue // missing, or not permitted
		}
		if w.dirs[int32(wd)] != dir {
			w.dirs[int32(wd)], more = dir, true
		}
	}
	return more
}

// take processes events and reports whether one is about containers.
func (w *dirWatch) take(events []byte) (tell bool) {
	scan := false
	for len(events) >= unix.SizeofInotifyEvent {
		wd, mask, name, rest := cutEvent(events)
		events = rest
		dir := w.dirs[wd]
		switch {
		case mask&unix.IN_IGNORED != 0: // the directory was removed
			delete(w.dirs, wd)
		case mask&unix.IN_Q_OVERFLOW != 0:
			scan, tell = true, true
		default:
			scan = scan || mask&unix.IN_ISDIR != 0
			tell = tell || w.about[dir]
			w.appear(filepath.Join(dir, name))
		}
	}
	// Entries of a new directory may be older than its watch.
	for range maxDepth {
		if !scan || !w.scan() {
			break
		}
		tell = true
	}
	return tell
}

// maxDepth is the number of directory levels of a container below the first.
const maxDepth = 5

// cutEvent splits off the first event (inotify(7)).
func cutEvent(b []byte) (wd int32, mask uint32, name string, rest []byte) {
	wd, mask = int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
	end := min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])))
	return wd, mask, strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00"), b[end:]
}

// appear triggers a retry of the engine with this socket.
func (w *dirWatch) appear(path string) {
	for _, l := range w.heard {
		if l.socket == path {
			select {
			case l.appeared <- struct{}{}:
			default:
			}
		}
	}
}
