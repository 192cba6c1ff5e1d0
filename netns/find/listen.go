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

// listenAgain is when an engine that has gone is tried once more, if its socket does
// not come back before; listenSoon when it does, and twice as long each time after.
const (
	listenAgain = 2 * time.Second
	listenSoon  = 5 * time.Millisecond
)

// Listen calls tell whenever a container of this machine may have begun or ended, until
// ctx has: that is all it says, and who cares looks. Docker, and an engine that
// CONTAINER_HOST names, send events; of Podman, containerd and named namespaces the
// directories are watched in which something appears with each that begins. LXC and
// Apptainer say nothing, and other users' engines are not heard: whoever owns a directory can
// have those who watch it wait, or wake them all the time. It tells also when an engine is
// heard again: it may have said something meanwhile. tell is called by several goroutines, and must
// not block. The error is that directories can't be watched; engines are heard even so.
func Listen(ctx context.Context, tell func()) error { return thisMachine(Options{}).listen(ctx, tell) }

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

// listener hears one engine.
type listener struct {
	api
	tell     func()
	appeared chan struct{} // its socket may be there now
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
			again = listenSoon // a socket has its name before somebody listens
		case <-time.After(again):
			again = min(2*again, listenAgain)
		}
	}
}

// hear tells of each event until the engine ends; false: it is not there. What an event
// says is not read: the engine was asked for those that matter.
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

// watchMask is what happens in a directory when a container begins or ends.
const watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_ONLYDIR

// watchedDirs are the directories that are there now in which containers' own appear,
// and those above: whether what happens in one is about containers.
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
	// Podman has other directories where it was told so.
	monitors, _ := newMonitors(m).called(mine, conmonNames...) // none is as good as an error
	for _, c := range monitors {
		if file := c.option("-p"); filepath.IsAbs(file) {
			dirs[filepath.Dir(file)] = true
		}
	}
	return dirs
}

// watchDirs tells of what happens in them, and has engines tried whose sockets appear.
func (m *machine) watchDirs(ctx context.Context, heard []listener, tell func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch directories: %w", err)
	}
	w := dirWatch{m: m, fd: fd, dirs: map[int32]string{}, heard: heard}
	file := os.NewFile(uintptr(fd), "inotify")
	defer file.Close()
	defer context.AfterFunc(ctx, func() { file.SetReadDeadline(time.Unix(1, 0)) })() // wakes the reader
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
	dirs  map[int32]string // by watch
	about map[string]bool  // as watchedDirs has them
	heard []listener
}

// scan watches what there is to be watched by now, and tells whether that is more
// than before. Watching a directory again changes nothing.
func (w *dirWatch) scan() (more bool) {
	w.about = w.m.watchedDirs(w.heard)
	for dir := range w.about {
		wd, err := unix.InotifyAddWatch(w.fd, w.m.path(dir), watchMask)
		if err != nil {
			continue // it is not there yet, or not for us
		}
		if w.dirs[int32(wd)] != dir {
			w.dirs[int32(wd)], more = dir, true
		}
	}
	return more
}

// take looks at events, and tells whether there is one about containers.
func (w *dirWatch) take(events []byte) (tell bool) {
	scan := false
	for len(events) >= unix.SizeofInotifyEvent {
		wd, mask, name, rest := cutEvent(events)
		events = rest
		dir := w.dirs[wd]
		switch {
		case mask&unix.IN_IGNORED != 0: // the directory is gone
			delete(w.dirs, wd)
		case mask&unix.IN_Q_OVERFLOW != 0:
			scan, tell = true, true
		default:
			scan = scan || mask&unix.IN_ISDIR != 0
			tell = tell || w.about[dir]
			w.appear(filepath.Join(dir, name))
		}
	}
	// What is in a new directory may have been there before it was watched.
	for range maxDepth {
		if !scan || !w.scan() {
			break
		}
		tell = true
	}
	return tell
}

// maxDepth is how many directories a container may need below the first.
const maxDepth = 5

// cutEvent takes the first of several events (inotify(7)).
func cutEvent(b []byte) (wd int32, mask uint32, name string, rest []byte) {
	wd, mask = int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
	end := min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])))
	return wd, mask, strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00"), b[end:]
}

// appear has an engine tried whose socket this is.
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
