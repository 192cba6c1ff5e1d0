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

	"golang.org/x/sys/unix"
)

// bindCaps are what binding sockets as others would takes, beside what those
// themselves may have.
var bindCaps = []uintptr{
	unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SYS_CHROOT, unix.CAP_SYS_PTRACE,
	unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_NET_BIND_SERVICE,
}

// bindServer binds sockets, in a process that sees no files otherwise. It never has the
// descriptor of notifications: who took this process over could answer by that.
type bindServer struct {
	end        int  // of the socket to the host's side
	proc       int  // /proc
	keepGroups bool // nobody in this user namespace may choose groups

	mu    sync.Mutex
	calls map[uint32]chan bool // those under way, and where they hear that their callers wait
}

// serveBinds binds sockets until the host's side is gone.
func (i *Guest) serveBinds() error {
	s, err := newBindServer(int(i.end))
	if err != nil {
		return &SetupError{Step: "prepare to bind sockets", Err: err}
	}
	go func() { // a path may be looked up for as long as somebody likes
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(i.end)}}, -1)
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(i.end)}}, -1)
		}
		os.Exit(0)
	}()
	return s.serve()
}

// serve reads what the host's side says. Each call has a thread of its own: it may last
// as long as the caller's file system takes. There are as many as programs, since each has
// one call under way at a time.
func (s *bindServer) serve() error {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	buf := make([]byte, maxMessage)
	for {
		n, oobn, _, _, err := unix.Recvmsg(s.end, buf, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return nil
		}
		fds, err := descriptors(oob[:oobn])
		var m bindMessage
		if err == nil {
			err = json.Unmarshal(buf[:n], &m)
		}
		switch {
		case err == nil && len(fds) == 1:
			s.begin(m, fds[0])
		case err == nil && len(fds) == 0:
			s.hear(m)
		default:
			closeAll(fds)
			return errors.Join(err, errBindMessage)
		}
	}
}

// begin has a thread carry a call out. It owns the socket.
func (s *bindServer) begin(m bindMessage, socket int) {
	waits := make(chan bool, 1)
	s.mu.Lock()
	s.calls[m.Call] = waits
	s.mu.Unlock()
	go func() {
		runtime.LockOSThread() // and the thread ends with us
		defer unix.Close(socket)
		result := s.bind(m, socket, waits)
		s.mu.Lock()
		delete(s.calls, m.Call)
		s.mu.Unlock()
		s.send(bindMessage{Call: m.Call, Result: result})
	}()
}

// hear tells a call whether its caller still waits.
func (s *bindServer) hear(m bindMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if waits := s.calls[m.Call]; waits != nil {
		select {
		case waits <- m.Go:
		default:
		}
	}
}

// send writes to the host's side. Where that fails the process ends soon.
func (s *bindServer) send(m bindMessage) {
	text, err := json.Marshal(m)
	if err == nil {
		_, err = unix.Write(s.end, text)
	}
	if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		os.Exit(1)
	}
}

// newBindServer leaves the process no files but /proc. A container that sees our
// entry there, by the host's /proc, finds its way through that (/proc/self/root)
// when we follow a path of its: it leads nowhere.
func newBindServer(end int) (s *bindServer, err error) {
	s = &bindServer{end: end, calls: map[uint32]chan bool{}}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return s, err
	}
	if s.proc, err = unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return s, err
	}
	allowed, err := s.read("self/setgroups")
	if err != nil {
		return s, err
	}
	s.keepGroups = string(bytes.TrimSpace(allowed)) == "deny"
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
	const nothing = "/proc/self/fdinfo" // where no file can be made
	return s, errors.Join(unix.Chroot(nothing), unix.Chdir("/"))
}

// read reads a file of /proc.
func (s *bindServer) read(name string) ([]byte, error) {
	fd, err := unix.Openat(s.proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(f)
}

// bind binds a socket as the thread would that the message names. It fails with EACCES
// where that can't be.
func (s *bindServer) bind(m bindMessage, socket int, waits <-chan bool) unix.Errno {
	err := s.become(m.TID, func() bool {
		s.send(bindMessage{Call: m.Call, Ready: true})
		return <-waits
	})
	if err != nil {
		return unix.EACCES
	}
	return sys.BindRaw(socket, m.Address)
}

// become gives this thread what another one has that decides about files. waits says
// whether that still waits.
func (s *bindServer) become(tid int, waits func() bool) error {
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
	status, err := s.read(fmt.Sprintf("%d/status", tid))
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
		c.Caps = 0 // it has them over less than we have
	}
	if same, err := s.sameNamespace(tid, "net"); err != nil || !same {
		return errors.Join(err, errors.New("it is of another network namespace"))
	}
	// All that was read is the caller's if it still waits: nobody else has its
	// number, and no other thread of its has executed a program, which ends it.
	if !waits() {
		return unix.ESRCH
	}
	c.KeepGroups = s.keepGroups
	return sys.Assume(c, dirs[0], dirs[1])
}

// sameNamespace tells whether a thread is in a namespace of ours.
func (s *bindServer) sameNamespace(tid int, kind string) (bool, error) {
	var ours, theirs unix.Stat_t
	if err := unix.Fstatat(s.proc, "thread-self/ns/"+kind, &ours, 0); err != nil {
		return false, err
	}
	if err := unix.Fstatat(s.proc, fmt.Sprintf("%d/ns/%s", tid, kind), &theirs, 0); err != nil {
		return false, err
	}
	return ours.Dev == theirs.Dev && ours.Ino == theirs.Ino, nil
}

// parseCredentials reads /proc/PID/status (proc_pid_status(5)).
func parseCredentials(status []byte) (sys.Credentials, error) {
	var c sys.Credentials
	var errs []error
	number := func(values [][]byte, at, base int) uint64 {
		if at >= len(values) {
			errs = append(errs, errors.New("a line of a thread's status is too short"))
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
		const files = 3 // real, effective, saved, and that for files
		switch string(name) {
		case "Umask":
			c.Umask = int(number(values, 0, 8))
		case "Uid":
			c.UID = int(number(values, files, 10))
		case "Gid":
			c.GID = int(number(values, files, 10))
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
		errs = append(errs, errors.New("the kernel does not say a thread's credentials"))
	}
	return c, errors.Join(errs...)
}
