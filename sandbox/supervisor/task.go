package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// task is a thread that has called. It holds a descriptor, and one for each of info.
type task struct {
	tid      int
	pidfd    int
	whole    bool // pidfd is the process's: older kernels have none of threads
	stranger bool // it is none of the container's (Program.Users)
	process  *process
	info     map[int]int // open files by the descriptor that they describe
}

// pidfdThread is PIDFD_THREAD (include/uapi/linux/pidfd.h; Linux 6.9).
const pidfdThread = unix.O_EXCL

// task is the thread of the call at hand.
func (p *program) task() (*task, error) {
	tid := p.note.TID
	if t, ok := p.tasks.get(tid); ok {
		if !t.whole {
			return t, nil
		}
		// Its number may be that of another process's thread by now.
		if pid, err := processOf(int(tid)); err == nil && pid == t.process.pid {
			return t, nil
		}
		p.forget(tid)
	}
	if tid == 0 { // it is in no process id namespace of ours
		return nil, unix.ESRCH
	}
	if !p.room() {
		return nil, errNoRoom
	}
	t, err := p.openTask(int(tid))
	if err != nil {
		p.account.release(1)
		return nil, err
	}
	p.tasks.put(tid, t)
	return t, nil
}

func (p *program) openTask(tid int) (*task, error) {
	pid, err := processOf(tid)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(tid, pidfdThread)
	whole := errors.Is(err, unix.EINVAL)
	if whole {
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return nil, err
	}
	stranger := false
	if p.Users != (Namespace{}) {
		if stranger, err = p.isStranger(tid); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	one := p.processes[pid]
	if one == nil {
		one = &process{pid: pid}
		p.processes[pid] = one
	}
	one.tasks++
	return &task{tid: tid, pidfd: fd, whole: whole, stranger: stranger, process: one, info: map[int]int{}}, nil
}

// forget drops a thread that is gone; its number may be another's by now.
func (p *program) forget(tid uint32) {
	if t, ok := p.tasks.take(tid); ok {
		p.closeTask(t)
	}
}

func (p *program) closeTask(t *task) {
	for fd := range t.info {
		p.closeInfo(t, fd)
	}
	p.discard(t.pidfd)
	if t.process.tasks--; t.process.tasks == 0 {
		delete(p.processes, t.process.pid)
	}
}

// processOf is the process that a thread belongs to.
func processOf(tid int) (int, error) {
	n, err := statusField(tid, "Tgid:", 10)
	return int(n), err
}

// statusField reads a number of /proc/TID/status (proc_pid_status(5)).
func statusField(tid int, name string, base int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, err
	}
	n, ok := field(text, name, base)
	if !ok {
		return 0, fmt.Errorf("no %q in a thread's status", name)
	}
	return n, nil
}

// duplicate takes a duplicate of the caller's descriptor.
func (p *program) duplicate(descriptor int) (int, *task, error) {
	for again := true; ; again = false {
		t, err := p.task()
		if err != nil {
			return -1, nil, err
		}
		fd, errno := sys.Getfd(t.pidfd, descriptor)
		switch {
		case errno == 0:
			return fd, t, nil
		case errno != unix.ESRCH || !again:
			return -1, nil, errno
		}
		p.forget(p.note.TID) // the one that had this number before
	}
}

// descriptor is what a descriptor's file says about it.
type descriptor struct {
	flags int    // open(2)'s, O_CLOEXEC too
	inode uint64 // 0: not told
}

// maxInfo bounds the files that describe one thread's descriptors.
const maxInfo = 8

// describe reads what the kernel says about a descriptor. The file stays open, if there
// is room: it speaks of the number, whatever that is at the moment of reading.
func (p *program) describe(t *task, fd int) (descriptor, error) {
	if file, ok := t.info[fd]; ok {
		return readInfo(file)
	}
	file, err := t.openInfo(fd)
	if err != nil {
		return descriptor{}, err
	}
	d, err := readInfo(file)
	if err != nil || !p.account.hold(1) {
		unix.Close(file)
		return d, err
	}
	if len(t.info) >= maxInfo {
		for some := range t.info {
			p.closeInfo(t, some)
			break
		}
	}
	t.info[fd] = file
	return d, nil
}

func (p *program) closeInfo(t *task, fd int) {
	p.discard(t.info[fd])
	delete(t.info, fd)
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
	return parseInfo(text[:n])
}

// parseInfo reads /proc/PID/fdinfo/FD (proc_pid_fdinfo(5)).
func parseInfo(text []byte) (d descriptor, err error) {
	flags, hasFlags := field(text, "flags:", 8)
	inode, hasInode := field(text, "ino:", 10)
	if !hasFlags || !hasInode {
		return d, errNoInfo
	}
	return descriptor{int(flags), inode}, nil
}

var errNoInfo = errors.New("the kernel does not say flags and inode of a descriptor")

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

// isStranger reports whether a thread is none of the container's: in another network
// namespace than ours to serve, or not below the container's user namespace.
func (p *program) isStranger(tid int) (bool, error) {
	net, err := NamespaceAt(fmt.Sprintf("/proc/%d/ns/net", tid))
	if err != nil {
		return false, err
	}
	if net != p.s.cfg.Network {
		return true, nil
	}
	path := fmt.Sprintf("/proc/%d/ns/user", tid)
	users, err := NamespaceAt(path)
	if err != nil || users == p.Users {
		return false, err
	}
	return isBelow(path, p.Users)
}

// NamespaceAt identifies the namespace that a file of /proc/PID/ns leads to.
func NamespaceAt(path string) (Namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Namespace{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return Namespace{st.Dev, st.Ino}, nil
}

// isBelow reports whether a user namespace is none of those below another.
func isBelow(path string, top Namespace) (stranger bool, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	for range 33 { // the kernel has 32 levels (create_user_ns, kernel/user_namespace.c)
		up, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		unix.Close(fd)
		if errors.Is(err, unix.EPERM) { // further out than ours
			return true, nil
		}
		if err != nil {
			return false, err
		}
		fd = up
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || top == (Namespace{st.Dev, st.Ino}) {
			unix.Close(fd)
			return false, err
		}
	}
	unix.Close(fd)
	return true, nil
}
