package keep

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"time"

	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// woken gathers what happened until the loop has time for it.
type woken struct {
	wake chan struct{} // there is something

	mu  sync.Mutex
	now happenings
}

// happenings is what happened.
type happenings struct {
	wanted  map[string]bool // attached or detached, by id
	unread  bool            // or which is not known
	engines bool            // a container may have begun
	ended   map[*first]bool // containers' first processes
	links   map[int]bool    // changed, by number, in whatever namespace
	names   map[string]bool // and by name
	lost    bool            // not all of those could be heard
	said    []string
}

func newWoken() *woken {
	return &woken{wake: make(chan struct{}, 1)}
}

// add has f note something.
func (w *woken) add(f func(*happenings)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.now)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *woken) engines() { w.add(func(h *happenings) { h.engines = true }) }

// note has the loop log something.
func (w *woken) note(format string, args ...any) {
	w.add(func(h *happenings) { h.said = append(h.said, fmt.Sprintf(format, args...)) })
}

// take is what happened since it was called last.
func (w *woken) take() happenings {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.now
	w.now = happenings{}
	return h
}

// concerns tells whether something happened that an item is to be looked at for. A
// link's number stands for many: looking is cheap.
func (h happenings) concerns(it *item) bool {
	switch {
	case it.first != nil && h.ended[it.first], it.index != 0 && h.links[it.index]:
		return true
	case h.engines && (it.gone || it.working || it.first == nil):
		return true
	}
	return it.report.Error != "" && h.names[it.a.Spec.Parent]
}

// watchWanted wakes when something is attached or detached.
func (w *woken) watchWanted(ctx context.Context, heard *sync.WaitGroup, store *attach.Store) error {
	dir := store.Path("attachments")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("watch attachments: %w", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch attachments: %w", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_DELETE); err != nil {
		file.Close()
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	heard.Go(func() {
		defer file.Close()
		read(ctx, file, file.Read, func(b []byte, err error) { w.add(func(h *happenings) { h.changed(b, err) }) })
	})
	return nil
}

// changed notes which attachments' files events are about (struct inotify_event); an
// error is that some were lost.
func (h *happenings) changed(b []byte, err error) {
	h.unread = h.unread || err != nil
	for len(b) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			break
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		b = b[size:]
		h.unread = h.unread || mask&unix.IN_Q_OVERFLOW != 0
		if id, is := attach.AttachmentID(string(name)); is {
			if h.wanted == nil {
				h.wanted = map[string]bool{}
			}
			h.wanted[id] = true
		}
	}
}

// read hands on what a file has, as receive takes it from there, and errors but the last, until
// ctx ends or there are only errors.
func read(ctx context.Context, file *os.File, receive func([]byte) (int, error), got func([]byte, error)) {
	defer context.AfterFunc(ctx, func() { file.SetReadDeadline(time.Unix(1, 0)) })()
	failed := 0
	for buf := make([]byte, 64<<10); failed < 10; {
		n, err := receive(buf)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failed++
		} else {
			failed = 0
		}
		got(buf[:n], err)
	}
}

// first is a container's first process, which is watched.
type first struct {
	pid  int
	file *os.File
}

// follow watches the first process of an item's container, and no other.
func (it *item) follow(w *woken) {
	pid := it.a.Container.PID
	if it.first != nil && it.first.pid == pid {
		return
	}
	it.first.close()
	it.first = nil
	if pid == 0 {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended, which the next look tells; or the kernel is older than 5.3
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return
	}
	f := &first{pid, os.NewFile(uintptr(fd), "pidfd")}
	conn, err := f.file.SyscallConn()
	if err != nil {
		f.close()
		return
	}
	it.first = f
	go func() { // it ends with the process, or when the file is closed
		if conn.Read(ended) == nil {
			w.add(func(h *happenings) {
				if h.ended == nil {
					h.ended = map[*first]bool{}
				}
				h.ended[f] = true
			})
		}
	}()
}

func (f *first) close() {
	if f != nil {
		f.file.Close()
	}
}

// ended tells whether a process's descriptor says that it has.
func ended(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
