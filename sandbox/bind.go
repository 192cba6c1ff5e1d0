package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"

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

// bindRequest asks the inside for a call of bind(2), with the socket and a pidfd
// beside it.
type bindRequest struct {
	TID     int
	Address []byte
}

// binder asks the inside of a joined namespace, which stays for that.
type binder struct {
	mu      sync.Mutex
	channel *channel
}

// bind is the result of a call. It waits its turn.
func (b *binder) bind(call supervisor.Binding) unix.Errno {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, err := json.Marshal(bindRequest{call.TID, call.Address})
	if err != nil {
		return unix.EACCES
	}
	if _, _, err := b.channel.conn.WriteMsgUnix(text, unix.UnixRights(call.Socket, call.Pidfd), nil); err != nil {
		return unix.EACCES
	}
	buf := make([]byte, 16)
	n, err := b.channel.conn.Read(buf)
	if err != nil {
		return unix.EACCES
	}
	errno, err := strconv.Atoi(string(buf[:n]))
	if err != nil || errno < 0 {
		return unix.EACCES
	}
	return unix.Errno(errno)
}

// serveBinds binds sockets until the host's side is gone.
func (i *Inside) serveBinds() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	buf := make([]byte, maxMessage)
	for {
		n, oobn, _, _, err := unix.Recvmsg(int(i.end), buf, oob, unix.MSG_CMSG_CLOEXEC)
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
		var r bindRequest
		if err == nil && len(fds) == 2 && json.Unmarshal(buf[:n], &r) == nil {
			result = bindAs(r, fds[0], fds[1])
		}
		closeAll(fds)
		if _, err := unix.Write(int(i.end), strconv.AppendInt(nil, int64(result), 10)); err != nil {
			return err
		}
	}
}

// bindAs binds a socket as the thread would that the request names. It fails with
// EACCES where that can't be.
func bindAs(r bindRequest, socket, pidfd int) unix.Errno {
	done := make(chan unix.Errno)
	go func() {
		runtime.LockOSThread() // and the thread ends with us
		if err := become(r.TID, pidfd); err != nil {
			done <- unix.EACCES
			return
		}
		done <- sys.BindRaw(socket, r.Address)
	}()
	return <-done
}

// become gives this thread what another one has that decides about files.
func become(tid, pidfd int) error {
	var dirs [2]int
	for i, name := range []string{"root", "cwd"} {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", tid, name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(dirs[:i])
			return err
		}
		dirs[i] = fd
	}
	defer closeAll(dirs[:])
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return err
	}
	c, err := parseCredentials(status)
	if err != nil {
		return err
	}
	if same, err := sameNamespace(tid, "user"); err != nil {
		return err
	} else if !same {
		c.Caps = 0 // it has them over less than we have
	}
	if same, err := sameNamespace(tid, "net"); err != nil || !same {
		return errors.Join(err, errors.New("it is of another network namespace"))
	}
	// What was read is the thread's if it is still there.
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0); err != nil || n != 0 {
		return errors.Join(err, unix.ESRCH)
	}
	return sys.Assume(c, dirs[0], dirs[1])
}

// sameNamespace tells whether a thread is in a namespace of ours.
func sameNamespace(tid int, kind string) (bool, error) {
	var ours, theirs unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/"+kind, &ours); err != nil {
		return false, err
	}
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/%s", tid, kind), &theirs); err != nil {
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
