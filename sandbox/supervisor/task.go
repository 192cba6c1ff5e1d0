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
const maxTasks = 1024

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
			unix.Close(t.pidfd)
		}
		clear(s.tasks)
		clear(s.programs)
	}
	p := s.programs[pid]
	if p == nil {
		p = &program{pid: pid}
		s.programs[pid] = p
	}
	t := &task{tid: int(tid), pidfd: fd, program: p}
	s.tasks[tid] = t
	return t, nil
}

// forget drops a thread that is gone; its number may be another's by now.
func (s *Supervisor) forget(tid uint32) {
	if t := s.tasks[tid]; t != nil {
		unix.Close(t.pidfd)
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
func (s *Supervisor) duplicate(descriptor int) (int, *task, error) {
	for again := true; ; again = false {
		t, err := s.task(s.note.TID)
		if err != nil {
			return -1, nil, err
		}
		fd, err := unix.PidfdGetfd(t.pidfd, descriptor, 0)
		if !errors.Is(err, unix.ESRCH) || !again {
			return fd, t, err
		}
		s.forget(s.note.TID) // the one that had this number before
	}
}

// descriptor is what a descriptor's file says about it.
type descriptor struct {
	flags int    // open(2)'s, O_CLOEXEC too
	inode uint64 // 0: not told
}

func (t *task) describe(fd int) (descriptor, error) {
	var d descriptor
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", t.tid, fd))
	if err != nil {
		return d, err
	}
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		text := string(bytes.TrimSpace(value))
		switch string(key) {
		case "flags":
			n, err := strconv.ParseUint(text, 8, 32)
			if err != nil {
				return d, fmt.Errorf("read flags of descriptor: %w", err)
			}
			d.flags = int(n)
		case "ino":
			if d.inode, err = strconv.ParseUint(text, 10, 64); err != nil {
				return d, fmt.Errorf("read inode of descriptor: %w", err)
			}
		}
	}
	return d, nil
}

// settled is how long after a call that changes what a socket is known by it has
// surely been carried out.
const settled = 50 * time.Millisecond

// entangled tells why more depends on a socket than its descriptor: a substitute
// would be missed by an epoll instance, or by who has a duplicate. "": nothing
// does.
func (s *Supervisor) entangled(t *task, fd int, d descriptor) string {
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
