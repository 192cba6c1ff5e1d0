package keep

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"cleat/internal/localsock"

	"golang.org/x/sys/unix"
)

// processContext is what the meaning of a command line depends on, besides environment variables.
type processContext struct {
	program, root os.FileInfo
	dir           string
	namespaces    string    // all of them
	capabilities  [2]uint32 // the effective ones
}

// contextNamespaces are the kinds of namespaces that commands read or change
// (namespaces(7)).
var contextNamespaces = []string{"cgroup", "mnt", "net", "pid", "user", "uts"}

// processContextOf returns the context of a process, or, if pid is 0, of the calling
// thread.
func processContextOf(pid int) (processContext, error) {
	proc := "/proc/thread-self/"
	if pid != 0 {
		proc = fmt.Sprintf("/proc/%d/", pid)
	}
	program, programErr := os.Stat(proc + "exe")
	root, rootErr := os.Stat(proc + "root")
	dir, dirErr := os.Readlink(proc + "cwd")
	errs := []error{programErr, rootErr, dirErr}
	namespaces := ""
	for _, kind := range contextNamespaces {
		ns, err := os.Readlink(proc + "ns/" + kind)
		namespaces, errs = namespaces+ns+" ", append(errs, err)
	}
	var caps [2]unix.CapUserData
	errs = append(errs, unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(pid)}, &caps[0]))
	if err := errors.Join(errs...); err != nil {
		return processContext{}, fmt.Errorf("read the context of a command: %w", err)
	}
	return processContext{program, root, dir, namespaces, [2]uint32{caps[0].Effective, caps[1].Effective}}, nil
}

// peer is the process at the other end of a connection, of the same user as this one.
type peer struct {
	pid   int
	pidfd int // -1 before Linux 6.5
}

var errOtherUser = errors.New("the client is of another user, or not visible here")

func peerOf(conn *net.UnixConn) (*peer, error) {
	p := &peer{pidfd: -1}
	var cred *unix.Ucred
	err := localsock.Control(conn, func(fd int) (err error) {
		if p.pidfd, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD); err != nil {
			p.pidfd = -1
		}
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err == nil && (int(cred.Uid) != os.Geteuid() || cred.Pid <= 0) { // 0: it is in a PID namespace that is not visible here
		err = errOtherUser
	}
	if err != nil {
		p.close()
		return nil, err
	}
	p.pid = int(cred.Pid)
	return p, nil
}

func (p *peer) close() {
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
}

// matches reports whether a command line means the same to the peer as in a context. The peer
// must be the same program, and be able to see and do the same. pathless means that no argument is a
// path.
func (p *peer) matches(s processContext, args []string, pathless bool) bool {
	o, ok := p.context()
	return ok && os.SameFile(s.program, o.program) && s.sees(o) &&
		(pathless || !slices.ContainsFunc(args, isPerProcess) && (s.dir == o.dir || !slices.ContainsFunc(args, mayBeRelative)))
}

// sees reports whether the peer, whatever program it is, can see and do the same as in a context.
func (p *peer) sees(s processContext) bool {
	o, ok := p.context()
	return ok && s.sees(o)
}

func (s processContext) sees(o processContext) bool {
	return os.SameFile(s.root, o.root) && s.namespaces == o.namespaces && s.capabilities == o.capabilities
}

// context returns the context of the peer; ok is false if it has ended.
func (p *peer) context() (c processContext, ok bool) {
	c, err := processContextOf(p.pid)
	if p.pidfd >= 0 && hasEnded(uintptr(p.pidfd)) {
		return c, false // its process id may be another process's by now
	}
	return c, err == nil
}

// isPerProcess reports whether an argument may be a path that leads to another file in
// each process: one of its descriptors, or its namespace.
func isPerProcess(arg string) bool {
	return slices.ContainsFunc([]string{"/proc/self/", "/proc/thread-self/", "/dev/fd/", "/dev/std"}, func(path string) bool { return strings.Contains(arg, path) })
}

// port matches published ports with a protocol, such as "[::]:53:53/udp".
var port = regexp.MustCompile(`^(-p|--publish=)?[][0-9a-fA-F.:*-]*[0-9]/(tcp|udp|sctp)$`)

// mayBeRelative reports whether an argument may have a path that is relative to the
// working directory: a container's, or that of --set NAME=@FILE.
func mayBeRelative(arg string) bool {
	if strings.HasPrefix(arg, "path:") || strings.Contains(arg, "@") {
		return true
	}
	if strings.HasPrefix(arg, "/") || !strings.Contains(arg, "/") || port.MatchString(arg) {
		return false
	}
	_, value, isFlag := strings.Cut(arg, "=")
	if !isFlag {
		value = arg
	}
	for _, word := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		if _, err := netip.ParsePrefix(word); strings.Contains(word, "/") && err != nil {
			return true
		}
	}
	return false
}
