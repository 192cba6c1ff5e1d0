package keep

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"cleat/network/attach"

	"golang.org/x/sys/unix"
)

// eventQueue collects events until the loop takes them.
type eventQueue struct {
	wake chan struct{} // receives when there are events

	mu      sync.Mutex
	pending events
}

// events are what happened since the last take.
type events struct {
	changed   map[string]bool       // ids of attachments that were attached or detached
	reload    bool                  // it is not known which
	engine    bool                  // a container may have started or ended
	ended     map[*initProcess]bool // first processes of containers that have ended
	links     map[linkID]bool       // links that changed
	linkNames map[string]bool       // their names
	linksLost bool                  // some changes of links are not known
	messages  []string              // to be logged
}

func newEventQueue() *eventQueue { return &eventQueue{wake: make(chan struct{}, 1)} }

// add adds an event by f, and wakes the loop.
func (q *eventQueue) add(f func(*events)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f(&q.pending)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *eventQueue) containerEvent() { q.add(func(e *events) { e.engine = true }) }

// logLater logs a message from the loop.
func (q *eventQueue) logLater(format string, args ...any) {
	q.add(func(e *events) { e.messages = append(e.messages, fmt.Sprintf(format, args...)) })
}

func (q *eventQueue) take() events {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.pending
	q.pending = events{}
	return e
}

// concerns reports whether an item must be looked at because of the events.
func (e events) concerns(it *item) bool {
	switch {
	case it.initProcess != nil && e.ended[it.initProcess], it.link.index != 0 && e.links[it.link]:
		return true
	case e.engine && (it.containerGone || it.working || it.initProcess == nil && !it.namespace.IsThere(nil)):
		return true
	}
	return it.report.Error != "" && e.linkNames[it.attachment.Spec.Parent]
}

// reloadEvery is the time between looks at all attachments where the kernel reports no changes of files.
const reloadEvery = time.Second

// watchAttachments adds an event when something is attached or detached. If the machine has no inotify instance or
// watch left, it adds one each reloadEvery, until there is one.
func (q *eventQueue) watchAttachments(ctx context.Context, listeners *sync.WaitGroup, store *attach.Store) error {
	dir := store.Path("attachments")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("watch attachments: %w", err)
	}
	err := q.watchFiles(ctx, listeners, dir)
	if !lacksInotify(err) {
		return err
	}
	q.logLater("%v; they are looked at every %s meanwhile: see sysctl fs.inotify", err, reloadEvery)
	listeners.Go(func() {
		for lacksInotify(err) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(reloadEvery):
			}
			err = q.watchFiles(ctx, listeners, dir)
			q.add(func(e *events) { e.reload = true })
		}
		q.logLater("attachments are watched again")
	})
	return nil
}

// lacksInotify reports whether the machine has no inotify instance or watch left.
func lacksInotify(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENOSPC) }

// watchFiles adds an event when a file of a directory changes.
func (q *eventQueue) watchFiles(ctx context.Context, listeners *sync.WaitGroup, dir string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_DELETE); err != nil {
		file.Close()
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	listeners.Go(func() {
		defer file.Close()
		read(ctx, file, file.Read, func(b []byte, err error) { q.add(func(e *events) { e.addFiles(b, err) }) })
	})
	return nil
}

// addFiles adds the attachments whose files inotify reports (struct inotify_event). An error means
// that some events were lost.
func (e *events) addFiles(b []byte, err error) {
	e.reload = e.reload || err != nil
	for len(b) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			break
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		b = b[size:]
		e.reload = e.reload || mask&unix.IN_Q_OVERFLOW != 0
		if id, ok := attach.AttachmentID(string(name)); ok {
			if e.changed == nil {
				e.changed = map[string]bool{}
			}
			e.changed[id] = true
		}
	}
}

// read calls handle with what receive returns, until ctx ends or receive fails ten times in a row.
func read(ctx context.Context, file *os.File, receive func([]byte) (int, error), handle func([]byte, error)) {
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
		handle(buf[:n], err)
	}
}

// initProcess is the first process of a container, which is watched.
type initProcess struct {
	pid  int
	file *os.File
}

// follow watches the first process of the item's container, instead of an earlier one.
func (it *item) follow(q *eventQueue) {
	pid := it.attachment.Container.PID
	if it.initProcess != nil && it.initProcess.pid == pid {
		return
	}
	it.initProcess.close()
	it.initProcess = nil
	if pid == 0 {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended, which the next look shows; or the kernel is older than 5.3
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return
	}
	f := &initProcess{pid, os.NewFile(uintptr(fd), "pidfd")}
	conn, err := f.file.SyscallConn()
	if err != nil {
		f.close()
		return
	}
	it.initProcess = f
	go func() { // ends with the process, or when the file is closed
		if conn.Read(hasEnded) == nil {
			q.add(func(e *events) {
				if e.ended == nil {
					e.ended = map[*initProcess]bool{}
				}
				e.ended[f] = true
			})
		}
	}()
}

func (f *initProcess) close() {
	if f != nil {
		f.file.Close()
	}
}

// hasEnded reports whether the process of a pidfd has ended.
func hasEnded(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
