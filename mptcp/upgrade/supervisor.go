package upgrade

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"cleat/internal/sys"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// supervisor answers the notifications of one filter. It runs on one thread.
type supervisor struct {
	notifications int
	strict        bool
	home          namespace // the supervisor's own
	root          bool      // may create sockets with other ids and in other namespaces
	note          sys.Notification
}

type namespace struct{ dev, ino uint64 }

// ids are the file system ids of a thread, which own its sockets.
type ids struct{ user, group int }

func namespaceAt(path string) (namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return namespace{}, err
	}
	return namespace{st.Dev, st.Ino}, nil
}

// run answers notifications until no process has the filter.
func (s *supervisor) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sys.WakeHere(s.notifications)
	for {
		fds := []unix.PollFd{{Fd: int32(s.notifications), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for notifications: %w", err)
		case fds[0].Revents&unix.POLLIN == 0:
			return nil
		}
		switch errno := sys.NextNotification(s.notifications, &s.note); errno {
		case 0:
			s.answer()
		case unix.ENOENT, unix.EINTR:
		default:
			return fmt.Errorf("take notification: %w", errno)
		}
	}
}

// answer makes the caller's socket(2) return an MPTCP socket, or continues the call. If
// the answer cannot be delivered, the caller is gone.
func (s *supervisor) answer() {
	kind := int(s.note.Args[1])
	fd, err := s.socket(int(uint32(s.note.Args[0])), kind)
	switch {
	case err != nil && s.strict:
		_ = sys.AnswerNotification(s.notifications, s.note.ID, errno(err))
		return
	case err != nil:
		_ = sys.ContinueNotification(s.notifications, s.note.ID)
		return
	}
	defer unix.Close(fd)
	theirs, refused := sys.GiveDescriptor(s.notifications, s.note.ID, fd, kind&unix.SOCK_CLOEXEC != 0)
	if refused != 0 {
		_ = sys.AnswerNotification(s.notifications, s.note.ID, refused) // EMFILE
		return
	}
	_ = sys.AnswerNumber(s.notifications, s.note.ID, theirs)
}

var errGone = errors.New("the caller is gone")

// socket creates the requested socket with the caller's ids in its namespace, as MPTCP.
func (s *supervisor) socket(family, kind int) (int, error) {
	create := func() (int, error) { return unix.Socket(family, kind|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP) }
	if s.note.TID == 0 {
		return -1, errGone
	}
	path := fmt.Sprintf("/proc/%d/ns/net", s.note.TID)
	where, err := namespaceAt(path)
	if err != nil {
		return -1, err
	}
	own := ids{os.Geteuid(), os.Getegid()}
	owner := own
	if s.root {
		if owner, err = idsOf(s.note.TID); err != nil {
			return -1, err
		}
	}
	if where == s.home && owner == own {
		if !sys.NotificationLives(s.notifications, s.note.ID) {
			return -1, errGone
		}
		return create()
	}
	ns, err := netns.OpenAs(path, "the caller's")
	if err != nil {
		return -1, err
	}
	defer ns.Close()
	if !sys.NotificationLives(s.notifications, s.note.ID) {
		return -1, errGone
	}
	fd := -1
	err = ns.Do(func() error { return as(owner, own, func() (err error) { fd, err = create(); return err }) })
	return fd, err
}

// as calls f with other file system ids on this thread.
func as(who, own ids, f func() error) error {
	if who == own {
		return f()
	}
	defer func() { // in the order that permissions require
		_ = unix.Setfsuid(own.user)
		_ = unix.Setfsgid(own.group)
	}()
	if err := errors.Join(unix.Setfsgid(who.group), unix.Setfsuid(who.user)); err != nil {
		return err
	}
	if now, err := unix.SetfsuidRetUid(-1); err != nil || now != who.user {
		return unix.EPERM // the kernel reports no error when it refuses
	}
	return f()
}

func idsOf(tid uint32) (ids, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return ids{}, err
	}
	user, err1 := lastNumber(text, "Uid:")
	group, err2 := lastNumber(text, "Gid:")
	return ids{user, group}, errors.Join(err1, err2)
}

// lastNumber returns the last field, the file system id, of a line in /proc/PID/status.
func lastNumber(status []byte, name string) (int, error) {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			if fields := bytes.Fields(rest); len(fields) == 4 {
				return strconv.Atoi(string(fields[3]))
			}
		}
	}
	return 0, fmt.Errorf("no %q in a process's status", name)
}
