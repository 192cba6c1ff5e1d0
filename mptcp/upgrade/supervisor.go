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

// supervisor answers the notifications of one filter. It is for one thread.
type supervisor struct {
	notifications int
	strict        bool
	home          namespace // where we are
	root          bool      // we can make sockets with other ids than ours, and elsewhere
	note          sys.Notification
}

// namespace is what a network namespace is known by.
type namespace struct{ dev, ino uint64 }

// ids are a thread's file system ids: whose its sockets are.
type ids struct{ user, group int }

func namespaceAt(path string) (namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return namespace{}, err
	}
	return namespace{st.Dev, st.Ino}, nil
}

func newSupervisor(notifications int, strict bool) (*supervisor, error) {
	home, err := namespaceAt("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("look at own network namespace: %w", err)
	}
	return &supervisor{notifications: notifications, strict: strict, home: home, root: os.Geteuid() == 0}, nil
}

// run answers until nobody has the filter any more.
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

// answer has the caller's socket(2) return a socket, or what it would without us. That
// an answer does not arrive says that the caller is gone.
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

// errGone says that whoever called is not there any more.
var errGone = errors.New("the caller is gone")

// socket makes the socket that the caller asked for, as if it had itself, but of
// MPTCP.
func (s *supervisor) socket(family, kind int) (int, error) {
	make := func() (int, error) { return unix.Socket(family, kind|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP) }
	if s.note.TID == 0 {
		return -1, errGone
	}
	path := fmt.Sprintf("/proc/%d/ns/net", s.note.TID)
	where, err := namespaceAt(path)
	if err != nil {
		return -1, err
	}
	own := ids{os.Geteuid(), os.Getegid()}
	who := own
	if s.root {
		if who, err = idsOf(s.note.TID); err != nil {
			return -1, err
		}
	}
	if where == s.home && who == own {
		if !sys.NotificationLives(s.notifications, s.note.ID) {
			return -1, errGone
		}
		return make()
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
	err = ns.Do(func() error { return as(who, own, func() (err error) { fd, err = make(); return err }) })
	return fd, err
}

// as calls f with other file system ids on this thread.
func as(who, own ids, f func() error) error {
	if who == own {
		return f()
	}
	defer func() { // in the order in which we may
		_ = unix.Setfsuid(own.user)
		_ = unix.Setfsgid(own.group)
	}()
	if err := errors.Join(unix.Setfsgid(who.group), unix.Setfsuid(who.user)); err != nil {
		return err
	}
	if now, err := unix.SetfsuidRetUid(-1); err != nil || now != who.user {
		return unix.EPERM // the kernel says nothing when it refuses
	}
	return f()
}

// idsOf reads a thread's file system ids.
func idsOf(tid uint32) (ids, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return ids{}, err
	}
	user, err1 := lastNumber(text, "Uid:")
	group, err2 := lastNumber(text, "Gid:")
	return ids{user, group}, errors.Join(err1, err2)
}

// lastNumber is the last field, the file system's, of a line of /proc/PID/status.
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
