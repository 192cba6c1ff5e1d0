package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"

	"cleat/internal/sys"
	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// bindCaps are the capabilities for binding sockets with the credentials of others. They
// include those that such credentials may contain.
var bindCaps = []uintptr{
	unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SYS_CHROOT, unix.CAP_SYS_PTRACE,
	unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_NET_BIND_SERVICE,
}

// bindServer binds sockets for containers, in a process that sees no files but /proc. The
// process never holds the descriptor of seccomp notifications: a container that took it over
// could answer notifications with that.
type bindServer struct {
	host       hostConn
	proc       int  // directory /proc
	keepGroups bool // this user namespace forbids setgroups(2)

	mu      sync.Mutex
	waiting map[uint32]chan bool // by call, whether its caller still waits
}

// serveBinds binds sockets until the host side closes the channel.
func (g *Guest) serveBinds() error {
	s, err := newBindServer(g.host)
	if err != nil {
		return &SetupError{Step: "prepare to bind sockets", Err: err}
	}
	go func() { // ends the process even while a path lookup in a container's file system hangs
		for {
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(g.host)}}, -1); !errors.Is(err, unix.EINTR) {
				os.Exit(0)
			}
		}
	}()
	return s.serve()
}

// serve handles messages of the host side. Each call has a thread of its own, since it may
// last as long as the caller's file system takes. There are as many threads as programs:
// each program has one call in flight.
func (s *bindServer) serve() error {
	for {
		text, fds, err := s.host.receive()
		if errors.Is(err, errHostClosed) {
			return nil
		}
		var m bindMessage
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		switch {
		case err == nil && len(fds) == 1:
			s.begin(m, fds[0])
		case err == nil && len(fds) == 0:
			s.proceed(m)
		default:
			closeAll(fds)
			return errors.Join(err, errBindMessage)
		}
	}
}

// begin starts a call on a thread of its own. It takes ownership of the socket.
func (s *bindServer) begin(m bindMessage, socket int) {
	waiting := make(chan bool, 1)
	s.mu.Lock()
	s.waiting[m.Call] = waiting
	s.mu.Unlock()
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer unix.Close(socket)
		result := s.bind(m, socket, waiting)
		s.mu.Lock()
		delete(s.waiting, m.Call)
		s.mu.Unlock()
		s.send(bindMessage{Call: m.Call, Result: result})
	}()
}

// proceed passes a call the host side's word on whether its caller still waits.
func (s *bindServer) proceed(m bindMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if waiting := s.waiting[m.Call]; waiting != nil {
		select {
		case waiting <- m.Go:
		default:
		}
	}
}

// send sends a message. If the host side is gone the process exits soon anyway.
func (s *bindServer) send(m bindMessage) {
	if err := s.host.send(m); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		os.Exit(1)
	}
}

// newBindServer takes all files but /proc from the process. A container that sees the host's
// /proc could follow this process's entry (/proc/self/root) in a path that it asks to bind;
// after chroot that leads to an empty directory.
func newBindServer(host hostConn) (s *bindServer, err error) {
	s = &bindServer{host: host, waiting: map[uint32]chan bool{}}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return s, err
	}
	if s.proc, err = unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return s, err
	}
	s.keepGroups = !setgroupsAllowed()
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return s, err
	}
	defer unix.Close(null)
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return s, err
		}
	}
	const empty = "/proc/self/fdinfo" // no file can be created there
	return s, errors.Join(unix.Chroot(empty), unix.Chdir("/"))
}

// bind binds a socket as the thread in the message would, and fails with EACCES if the
// thread's credentials can't be assumed.
func (s *bindServer) bind(m bindMessage, socket int, waiting <-chan bool) unix.Errno {
	err := s.assume(m.TID, func() bool {
		s.send(bindMessage{Call: m.Call, Ready: true})
		return <-waiting
	})
	if err != nil {
		return unix.EACCES
	}
	return sys.BindRaw(socket, m.Address)
}

// assume gives the calling thread the credentials, root and working directory of thread tid.
// stillWaits reports whether tid still waits for its call.
func (s *bindServer) assume(tid int, stillWaits func() bool) error {
	var dirs [2]int
	for i, name := range []string{"root", "cwd"} {
		fd, err := unix.Openat(s.proc, fmt.Sprintf("%d/%s", tid, name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(dirs[:i])
			return err
		}
		dirs[i] = fd
	}
	defer closeAll(dirs[:])
	status, err := s.readStatus(tid)
	if err != nil {
		return err
	}
	c, err := parseCredentials(status)
	if err != nil {
		return err
	}
	if same, err := s.sameNamespace(tid, "user"); err != nil {
		return err
	} else if !same {
		c.Caps = 0 // the thread has them over its own user namespace, not over this one
	}
	if same, err := s.sameNamespace(tid, "net"); err != nil || !same {
		return errors.Join(err, errors.New("the thread is in another network namespace"))
	}
	// If the thread still waits, all that was read is its own: its id was not reused, and no
	// other thread of its process has executed a program, which would have ended it.
	if !stillWaits() {
		return unix.ESRCH
	}
	c.KeepGroups = s.keepGroups
	return sys.Assume(c, dirs[0], dirs[1])
}

func (s *bindServer) readStatus(tid int) ([]byte, error) {
	fd, err := unix.Openat(s.proc, fmt.Sprintf("%d/status", tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "status")
	defer f.Close()
	return io.ReadAll(f)
}

// sameNamespace reports whether a thread shares a namespace of the calling thread.
func (s *bindServer) sameNamespace(tid int, kind string) (bool, error) {
	var ids [2]supervisor.Namespace
	for i, dir := range []string{"thread-self", strconv.Itoa(tid)} {
		var st unix.Stat_t
		if err := unix.Fstatat(s.proc, dir+"/ns/"+kind, &st, 0); err != nil {
			return false, err
		}
		ids[i] = supervisor.Namespace{Dev: st.Dev, Ino: st.Ino}
	}
	return ids[0] == ids[1], nil
}

// parseCredentials parses /proc/PID/status (proc_pid_status(5)).
func parseCredentials(status []byte) (sys.Credentials, error) {
	var c sys.Credentials
	var errs []error
	number := func(values [][]byte, at, base int) uint64 {
		if at >= len(values) {
			errs = append(errs, errors.New("a line of the thread's status is too short"))
			return 0
		}
		n, err := strconv.ParseUint(string(values[at]), base, 63)
		errs = append(errs, err)
		return n
	}
	found := map[string]bool{}
	for line := range bytes.Lines(status) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		values := bytes.Fields(rest)
		const fs = 3 // after real, effective and saved: the id for file access
		switch string(name) {
		case "Umask":
			c.Umask = int(number(values, 0, 8))
		case "Uid":
			c.UID = int(number(values, fs, 10))
		case "Gid":
			c.GID = int(number(values, fs, 10))
		case "Groups":
			c.Groups = nil
			for i := range values {
				c.Groups = append(c.Groups, int(number(values, i, 10)))
			}
		case "CapEff":
			c.Caps = number(values, 0, 16)
		default:
			continue
		}
		found[string(name)] = true
	}
	if len(found) != 5 {
		errs = append(errs, errors.New("credentials are missing in the thread's status"))
	}
	return c, errors.Join(errs...)
}
