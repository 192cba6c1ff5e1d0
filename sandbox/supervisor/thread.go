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

// thread is a thread that has made a call. It holds a pidfd, and a descriptor for each
// entry of fdinfo.
type thread struct {
	tid     int
	pidfd   int
	whole   bool // pidfd is that of the process: older kernels have none for threads
	foreign bool // the thread does not belong to the container (Program.UserNS)
	process *process
	fdinfo  map[int]int // open files of /proc/TID/fdinfo, by the descriptor that they describe
}

// pidfdThread is PIDFD_THREAD (include/uapi/linux/pidfd.h, Linux 6.9).
const pidfdThread = unix.O_EXCL

func (p *program) callerThread() (*thread, error) {
	tid := p.call.TID
	if t, ok := p.threads.get(tid); ok {
		if !t.whole {
			return t, nil
		}
		// A thread of another process may have the number by now.
		if pid, err := processOf(int(tid)); err == nil && pid == t.process.pid {
			return t, nil
		}
		p.threads.drop(tid)
	}
	if tid == 0 { // it has no number in our process id namespace
		return nil, unix.ESRCH
	}
	if !p.hold() {
		return nil, errNoDescriptors
	}
	t, err := p.openThread(int(tid))
	if err != nil {
		p.account.release(1)
		return nil, err
	}
	p.threads.put(tid, t)
	return t, nil
}

func (p *program) openThread(tid int) (*thread, error) {
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
	foreign := false
	if p.UserNS != (Namespace{}) {
		if foreign, err = p.isForeign(tid); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	own := p.processes[pid]
	if own == nil {
		own = &process{pid: pid}
		p.processes[pid] = own
	}
	own.threads++
	return &thread{tid: tid, pidfd: fd, whole: whole, foreign: foreign, process: own, fdinfo: map[int]int{}}, nil
}

func (p *program) closeThread(t *thread) {
	for fd := range t.fdinfo {
		p.closeInfo(t, fd)
	}
	p.closeHeld(t.pidfd)
	if t.process.threads--; t.process.threads == 0 {
		delete(p.processes, t.process.pid)
	}
}

func processOf(tid int) (int, error) {
	n, err := statusField(tid, "Tgid:", 10)
	return int(n), err
}

// statusField reads a number from /proc/TID/status (proc_pid_status(5)).
func statusField(tid int, name string, base int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, err
	}
	n, ok := field(text, name, base)
	if !ok {
		return 0, fmt.Errorf("no %q in the status of thread %d", name, tid)
	}
	return n, nil
}

func (p *program) duplicate(descriptor int) (int, *thread, error) {
	for again := true; ; again = false {
		t, err := p.callerThread()
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
		p.threads.drop(p.call.TID) // an earlier thread had this number
	}
}

type descriptor struct {
	flags int // those of open(2), with O_CLOEXEC
	inode uint64
}

// maxInfo bounds thread.fdinfo.
const maxInfo = 8

// describe describes a descriptor of a thread. It keeps the fdinfo file open if the
// program's share of descriptors allows: the file describes whatever has the number when
// it is read.
func (p *program) describe(t *thread, fd int) (descriptor, error) {
	if file, ok := t.fdinfo[fd]; ok {
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
	if len(t.fdinfo) >= maxInfo {
		for other := range t.fdinfo {
			p.closeInfo(t, other)
			break
		}
	}
	t.fdinfo[fd] = file
	return d, nil
}

func (p *program) closeInfo(t *thread, fd int) {
	p.closeHeld(t.fdinfo[fd])
	delete(t.fdinfo, fd)
}

// describeOnce is describe without keeping the file open.
func (t *thread) describeOnce(fd int) (descriptor, error) {
	file, err := t.openInfo(fd)
	if err != nil {
		return descriptor{}, err
	}
	defer unix.Close(file)
	return readInfo(file)
}

func (t *thread) openInfo(fd int) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/%d/fdinfo/%d", t.tid, fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

func readInfo(file int) (descriptor, error) {
	var text [512]byte // flags and inode come first
	n, err := unix.Pread(file, text[:], 0)
	if err != nil {
		return descriptor{}, err
	}
	return parseInfo(text[:n])
}

var errNoInfo = errors.New("no flags or no inode number in the description of a descriptor")

// parseInfo parses /proc/PID/fdinfo/FD (proc_pid_fdinfo(5)).
func parseInfo(text []byte) (descriptor, error) {
	flags, hasFlags := field(text, "flags:", 8)
	inode, hasInode := field(text, "ino:", 10)
	if !hasFlags || !hasInode {
		return descriptor{}, errNoInfo
	}
	return descriptor{int(flags), inode}, nil
}

// field parses the number in the line of text that begins with name.
func field(text []byte, name string, base int) (uint64, bool) {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(name)); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), base, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// isForeign reports whether a thread does not belong to the container: it is outside of
// Config.Network, or outside of the container's user namespace and its descendants.
func (p *program) isForeign(tid int) (bool, error) {
	net, err := NamespaceAt(fmt.Sprintf("/proc/%d/ns/net", tid))
	if err != nil || net != p.s.cfg.Network {
		return true, err
	}
	path := fmt.Sprintf("/proc/%d/ns/user", tid)
	user, err := NamespaceAt(path)
	if err != nil || user == p.UserNS {
		return false, err
	}
	below, err := isDescendant(path, p.UserNS)
	return !below, err
}

// NamespaceAt identifies the namespace at a path such as /proc/PID/ns/net.
func NamespaceAt(path string) (Namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Namespace{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return Namespace{st.Dev, st.Ino}, nil
}

// isDescendant reports whether the user namespace at a path is a descendant of another.
func isDescendant(path string, ancestor Namespace) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { unix.Close(fd) }()
	for range 33 { // the kernel has 32 levels (create_user_ns, kernel/user_namespace.c)
		parent, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		if errors.Is(err, unix.EPERM) { // the parent is outside of our own namespace
			return false, nil
		}
		if err != nil {
			return false, err
		}
		unix.Close(fd)
		fd = parent
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || ancestor == (Namespace{st.Dev, st.Ino}) {
			return err == nil, err
		}
	}
	return false, nil
}
