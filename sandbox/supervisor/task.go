package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// task is a thread that has called.
type task struct {
	tid     int
	pidfd   int
	whole   bool // pidfd is the process's: older kernels have none of threads
	program *program
	info    map[int]int // open files by descriptor
}

// program is a process, as far as its descriptors are known.
type program struct {
	pid      int
	shuffles uint64 // the Supervisor's when it was looked at
	looked   time.Time
	epolls   []int
	doubles  map[uint64]bool // inodes of sockets with several descriptors
}

// maxTasks bounds how many threads are remembered, each with descriptors of ours.
const maxTasks = 64

// pidfdThread is PIDFD_THREAD (include/uapi/linux/pidfd.h; Linux 6.9).
const pidfdThread = unix.O_EXCL

// task is the thread of a notification.
func (s *Supervisor) task(tid uint32) (*task, error) {
	if t := s.tasks[tid]; t != nil {
		if !t.whole {
			return t, nil
		}
		// Its number may be that of another process's thread by now.
		if pid, err := processOf(int(tid)); err == nil && pid == t.program.pid {
			return t, nil
		}
		s.forget(tid)
	}
	if tid == 0 {
		return nil, unix.ESRCH
	}
	pid, err := processOf(int(tid))
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(int(tid), pidfdThread)
	whole := errors.Is(err, unix.EINVAL)
	if whole {
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return nil, err
	}
	if len(s.tasks) >= maxTasks {
		for _, t := range s.tasks {
			t.close()
		}
		clear(s.tasks)
		clear(s.programs)
	}
	p := s.programs[pid]
	if p == nil {
		p = &program{pid: pid}
		s.programs[pid] = p
	}
	t := &task{tid: int(tid), pidfd: fd, whole: whole, program: p, info: map[int]int{}}
	s.tasks[tid] = t
	return t, nil
}

// forget drops a thread that is gone; its number may be another's by now.
func (s *Supervisor) forget(tid uint32) {
	if t := s.tasks[tid]; t != nil {
		t.close()
		delete(s.tasks, tid)
		delete(s.programs, t.program.pid)
	}
}

// processOf is the process that a thread belongs to.
func processOf(tid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(b, []byte("\nTgid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return strconv.Atoi(string(bytes.TrimSpace(line)))
}

// duplicate takes a duplicate of the caller's descriptor.
func (s *Supervisor) duplicate(descriptor int) (int, *task, unix.Errno) {
	for again := true; ; again = false {
		t, err := s.task(s.note.TID)
		if err != nil {
			return -1, nil, unix.ESRCH
		}
		fd, errno := sys.Getfd(t.pidfd, descriptor)
		if errno != unix.ESRCH || !again {
			return fd, t, errno
		}
		s.forget(s.note.TID) // the one that had this number before
	}
}

// descriptor is what a descriptor's file says about it.
type descriptor struct {
	flags int    // open(2)'s, O_CLOEXEC too
	inode uint64 // 0: not told
}

// describe reads what the kernel says about a descriptor. The file stays open:
// it speaks of the number, whatever that is at the moment of reading.
func (t *task) describe(fd int) (d descriptor, ok bool) {
	file, open := t.info[fd]
	if !open {
		var err error
		if file, err = t.openInfo(fd); err != nil {
			return d, false
		}
		if len(t.info) >= maxInfo {
			t.closeInfo()
		}
		t.info[fd] = file
	}
	d, err := readInfo(file)
	return d, err == nil
}

// describeOnce is describe for a descriptor that is not asked for again.
func (t *task) describeOnce(fd int) (descriptor, error) {
	file, err := t.openInfo(fd)
	if err != nil {
		return descriptor{}, err
	}
	defer unix.Close(file)
	return readInfo(file)
}

func (t *task) openInfo(fd int) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/%d/fdinfo/%d", t.tid, fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

func readInfo(file int) (d descriptor, err error) {
	var text [512]byte // flags and inode come first
	n, errno := sys.ReadAt(file, text[:], 0)
	if errno != 0 {
		return d, errno
	}
	flags, hasFlags := field(text[:n], "flags:", 8)
	inode, hasInode := field(text[:n], "ino:", 10)
	if !hasFlags || !hasInode {
		return d, errNoInfo
	}
	return descriptor{int(flags), inode}, nil
}

var errNoInfo = errors.New("the kernel does not tell flags and inode of a descriptor")

// field is the number in a line of text that begins with a name.
func field(text []byte, name string, base int) (uint64, bool) {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(name)); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), base, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// maxInfo bounds the files that describe one thread's descriptors.
const maxInfo = 8

func (t *task) closeInfo() {
	for _, fd := range t.info {
		unix.Close(fd)
	}
	clear(t.info)
}

func (t *task) close() {
	t.closeInfo()
	unix.Close(t.pidfd)
}

// settled is how long after a call that changes what a socket is known by it has
// surely been carried out.
const settled = 50 * time.Millisecond

// entangled tells why more depends on a socket than its descriptor: a substitute
// would be missed by an epoll instance, or by who has a duplicate. "": nothing
// does.
func (s *Supervisor) entangled(c socket) string {
	t, fd, d := c.task, c.theirs, c.about
	p := t.program
	if p.looked.IsZero() || p.shuffles != s.shuffles || p.looked.Before(s.lastShuffle.Add(settled)) || fd <= stdio {
		if s.look(t) != nil {
			return whyUnknown
		}
	}
	if p.doubles[d.inode] {
		if s.look(t) != nil { // it may have been closed since
			return whyUnknown
		}
		if p.doubles[d.inode] {
			return whyDuplicated
		}
	}
	for n := 0; n <= stdio; n++ {
		if n != fd && sys.SameFile(t.tid, fd, n) {
			return whyDuplicated
		}
	}
	in := false
	p.epolls = slices.DeleteFunc(p.epolls, func(epoll int) bool {
		is, errno := sys.InEpoll(t.tid, fd, epoll)
		in = in || is
		if errno == unix.EBADF {
			p.looked = time.Time{} // it was closed: there may be another one by now
		}
		return errno != 0
	})
	if in {
		return whyEpoll
	}
	return ""
}

// look goes through a process's descriptors, by /proc/PID/fdinfo: the files of
// another user's process that we may look into can be listed there, and not in fd.
func (s *Supervisor) look(t *task) error {
	p := t.program
	p.epolls, p.doubles = p.epolls[:0], map[uint64]bool{}
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fdinfo", t.tid))
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	once := map[uint64]bool{}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			return err
		}
		d, err := t.describeOnce(fd)
		if err != nil {
			continue // closed since
		}
		if d.inode == s.anonymous {
			p.epolls = append(p.epolls, fd) // or something else of that kind
		} else if once[d.inode] {
			p.doubles[d.inode] = true
		}
		once[d.inode] = true
	}
	p.shuffles, p.looked = s.shuffles, time.Now()
	return nil
}

// anonymousInode is that of all epoll instances, and of other files that are
// nowhere.
func anonymousInode() (uint64, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Ino, err
}

// Why a connection takes another tier.
const (
	whyUnknown    = "its descriptors can't be looked at"
	whyDuplicated = "the socket was duplicated"
	whyEpoll      = "the socket waits in an epoll instance already"
	whyBound      = "the socket is bound"
	whyOption     = "the socket has an option that can't be had on the host's"
	whyAsync      = "the socket sends signals"
	whyPolicy     = "the policy does not simply let it through"
	whyInside     = "the destination is inside"
	whyNamespace  = "the socket is of another network namespace"
	whyPrivileged = "the program may configure the host's network"
	whyPorts      = "the host's range of ports has changed, and no longer keeps its sockets from new ones"
	whyHost       = "the host's socket could not be made"
	whyAddress    = "the address is none that leads anywhere"
)
