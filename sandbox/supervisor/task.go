package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// task is a thread that has called.
type task struct {
	tid     int
	pidfd   int
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

// maxTasks bounds how many threads are remembered.
const maxTasks = 256

// pidfdThread is PIDFD_THREAD (include/uapi/linux/pidfd.h; Linux 6.9).
const pidfdThread = unix.O_EXCL

// task is the thread of a notification.
func (s *Supervisor) task(tid uint32) (*task, error) {
	if t := s.tasks[tid]; t != nil {
		return t, nil
	}
	if tid == 0 {
		return nil, unix.ESRCH
	}
	pid, err := processOf(int(tid))
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(int(tid), pidfdThread)
	if errors.Is(err, unix.EINVAL) {
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
	t := &task{tid: int(tid), pidfd: fd, program: p, info: map[int]int{}}
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
		fd, errno := sys.GetfdNow(t.pidfd, descriptor)
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
		if file, err = unix.Open(fmt.Sprintf("/proc/%d/fdinfo/%d", t.tid, fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return d, false
		}
		if len(t.info) >= maxInfo {
			t.closeInfo()
		}
		t.info[fd] = file
	}
	var text [512]byte
	n, errno := sys.ReadAtNow(file, text[:], 0)
	if errno != 0 {
		return d, false
	}
	flags, ok := field(text[:n], "flags:", 8)
	if !ok {
		return d, false
	}
	d.flags = int(flags)
	d.inode, ok = field(text[:n], "ino:", 10)
	return d, ok
}

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
const maxInfo = 64

func (t *task) closeInfo() {
	for _, fd := range t.info {
		sys.CloseNow(fd)
	}
	clear(t.info)
}

func (t *task) close() {
	t.closeInfo()
	sys.CloseNow(t.pidfd)
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
	for _, epoll := range p.epolls {
		in, errno := sys.InEpoll(t.tid, fd, epoll)
		if errno != 0 { // it is none any more
			p.looked = time.Time{}
			continue
		}
		if in {
			return whyEpoll
		}
	}
	return ""
}

// look goes through a process's descriptors.
func (s *Supervisor) look(t *task) error {
	p := t.program
	p.epolls, p.doubles = p.epolls[:0], map[uint64]bool{}
	dir := fmt.Sprintf("/proc/%d/fd", t.tid)
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	once := map[uint64]bool{}
	for _, name := range names {
		to, err := os.Readlink(dir + "/" + name)
		if err != nil {
			continue // closed since
		}
		if to == "anon_inode:[eventpoll]" {
			if n, err := strconv.Atoi(name); err == nil {
				p.epolls = append(p.epolls, n)
			}
		}
		rest, ok := strings.CutPrefix(to, "socket:[")
		if !ok {
			continue
		}
		inode, err := strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 64)
		if err != nil {
			continue
		}
		if once[inode] {
			p.doubles[inode] = true
		}
		once[inode] = true
	}
	p.shuffles, p.looked = s.shuffles, time.Now()
	return nil
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
	whyHost       = "the host's socket could not be made"
	whyAddress    = "the address is none that leads anywhere"
)
