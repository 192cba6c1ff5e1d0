package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"

	"cleat/internal/sys"
	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// bindCaps are what binding sockets as others would takes, beside what those
// themselves may have.
var bindCaps = []uintptr{
	unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SYS_CHROOT, unix.CAP_SYS_PTRACE,
	unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_NET_BIND_SERVICE,
}

// bindRequest asks the inside for a call of bind(2), with the socket and the
// descriptor of notifications beside it.
type bindRequest struct {
	TID     int
	ID      uint64 // of the notification
	Address []byte
}

// binder asks the inside of a joined namespace, which stays for that.
type binder struct {
	channel *channel
	lost    func(error)
	gone    bool
}

// bind is the result of a call.
func (b *binder) bind(call supervisor.Binding) unix.Errno {
	if b.gone {
		return unix.EACCES
	}
	result, err := b.ask(call)
	if err != nil {
		b.gone = true
		if !errors.Is(err, net.ErrClosed) { // by us, at the end
			b.lost(err)
		}
		return unix.EACCES
	}
	return result
}

func (b *binder) ask(call supervisor.Binding) (unix.Errno, error) {
	text, err := json.Marshal(bindRequest{call.TID, call.ID, call.Address})
	if err != nil {
		return 0, err
	}
	if _, _, err := b.channel.conn.WriteMsgUnix(text, unix.UnixRights(call.Socket, call.Notifications), nil); err != nil {
		return 0, err
	}
	buf := make([]byte, 16)
	n, err := b.channel.conn.Read(buf)
	if err != nil {
		return 0, err
	}
	errno, err := strconv.ParseUint(string(buf[:n]), 10, 16)
	return unix.Errno(errno), err
}

// bindServer is what binding takes, in a process that sees no files otherwise.
type bindServer struct {
	proc       int  // /proc
	keepGroups bool // nobody in this user namespace may choose groups
}

// serveBinds binds sockets until the host's side is gone.
func (i *Inside) serveBinds() error {
	s, err := newBindServer()
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
	return serveRequests(int(i.end), 2, func(text []byte, fds []int) unix.Errno {
		var r bindRequest
		if json.Unmarshal(text, &r) != nil {
			return unix.EACCES
		}
		return s.bind(r, fds[0], fds[1])
	})
}

// serveRequests answers requests, each with so many descriptors, by errno.
func serveRequests(end, files int, serve func(text []byte, fds []int) unix.Errno) error {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	buf := make([]byte, maxMessage)
	for {
		n, oobn, _, _, err := unix.Recvmsg(end, buf, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return nil
		}
		fds, err := descriptors(oob[:oobn])
		result := unix.EACCES
		if err == nil && len(fds) == files {
			result = serve(buf[:n], fds)
		}
		closeAll(fds)
		if _, err := unix.Write(end, strconv.AppendInt(nil, int64(result), 10)); err != nil {
			return err
		}
	}
}

// newBindServer leaves the process no files but /proc. A container that sees our
// entry there, by the host's /proc, finds its way through that (/proc/self/root)
// when we follow a path of its: it leads nowhere.
func newBindServer() (s bindServer, err error) {
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
func (s bindServer) read(name string) ([]byte, error) {
	fd, err := unix.Openat(s.proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(f)
}

// bind binds a socket as the thread would that the request names. It fails with
// EACCES where that can't be, and with supervisor.Left where the thread has left.
func (s bindServer) bind(r bindRequest, socket, notifications int) unix.Errno {
	done := make(chan unix.Errno)
	go func() {
		runtime.LockOSThread() // and the thread ends with us
		err := s.become(r, notifications)
		switch {
		case err == nil:
			done <- sys.BindRaw(socket, r.Address)
		case sys.NotificationLives(notifications, r.ID):
			done <- unix.EACCES
		default:
			done <- supervisor.Left
		}
	}()
	return <-done
}

// become gives this thread what another one has that decides about files.
func (s bindServer) become(r bindRequest, notifications int) error {
	var dirs [2]int
	for i, name := range []string{"root", "cwd"} {
		fd, err := unix.Openat(s.proc, fmt.Sprintf("%d/%s", r.TID, name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(dirs[:i])
			return err
		}
		dirs[i] = fd
	}
	defer closeAll(dirs[:])
	status, err := s.read(fmt.Sprintf("%d/status", r.TID))
	if err != nil {
		return err
	}
	c, err := parseCredentials(status)
	if err != nil {
		return err
	}
	if same, err := s.sameNamespace(r.TID, "user"); err != nil {
		return err
	} else if !same {
		c.Caps = 0 // it has them over less than we have
	}
	if same, err := s.sameNamespace(r.TID, "net"); err != nil || !same {
		return errors.Join(err, errors.New("it is of another network namespace"))
	}
	// All that was read is the caller's if it still waits: nobody else has its
	// number, and no other thread of its has executed a program, which ends it.
	if !sys.NotificationLives(notifications, r.ID) {
		return unix.ESRCH
	}
	c.KeepGroups = s.keepGroups
	return sys.Assume(c, dirs[0], dirs[1])
}

// sameNamespace tells whether a thread is in a namespace of ours.
func (s bindServer) sameNamespace(tid int, kind string) (bool, error) {
	var ours, theirs unix.Stat_t
	if err := unix.Fstatat(s.proc, "thread-self/ns/"+kind, &ours, 0); err != nil {
		return false, err
	}
	if err := unix.Fstatat(s.proc, fmt.Sprintf("%d/ns/%s", tid, kind), &theirs, 0); err != nil {
		return false, err
	}
	return namespaceID{ours.Dev, ours.Ino} == namespaceID{theirs.Dev, theirs.Ino}, nil
}

// parseCredentials reads /proc/PID/status (proc_pid_status(5)).
func parseCredentials(status []byte) (sys.Credentials, error) {
	var c sys.Credentials
	var errs []error
	number := func(text []byte, base int) uint64 {
		n, err := strconv.ParseUint(string(text), base, 64)
		errs = append(errs, err)
		return n
	}
	found := 0
	for line := range bytes.Lines(status) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		values := bytes.Fields(rest)
		const files = 3 // real, effective, saved, and that for files
		switch string(name) {
		case "Umask":
			c.Umask = int(number(rest[1:len(rest)-1], 8))
		case "Uid":
			c.UID = int(number(values[files], 10))
		case "Gid":
			c.GID = int(number(values[files], 10))
		case "Groups":
			for _, v := range values {
				c.Groups = append(c.Groups, int(number(v, 10)))
			}
		case "CapEff":
			c.Caps = number(values[0], 16)
		default:
			continue
		}
		found++
	}
	if found != 5 {
		errs = append(errs, errors.New("the kernel does not tell a thread's credentials"))
	}
	return c, errors.Join(errs...)
}
