package keep

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"cleat/internal/localsock"

	"golang.org/x/sys/unix"
)

// surroundings is what has the same command line mean the same in two processes.
type surroundings struct {
	program, root os.FileInfo
	dir           string
	namespaces    string    // all of them
	capabilities  [2]uint32 // the effective ones
}

// kindsOfNamespaces are those in which a command looks or works (namespaces(7)).
var kindsOfNamespaces = []string{"cgroup", "mnt", "net", "pid", "user", "uts"}

// surroundingsOf are those of a process, or, if pid is 0, of the calling thread.
func surroundingsOf(pid int) (surroundings, error) {
	var s surroundings
	fail := func(err error) (surroundings, error) {
		return surroundings{}, fmt.Errorf("see who asks for a command: %w", err)
	}
	proc := "/proc/thread-self/"
	if pid != 0 {
		proc = fmt.Sprintf("/proc/%d/", pid)
	}
	var err error
	if s.program, err = os.Stat(proc + "exe"); err != nil {
		return fail(err)
	}
	if s.root, err = os.Stat(proc + "root"); err != nil {
		return fail(err)
	}
	if s.dir, err = os.Readlink(proc + "cwd"); err != nil {
		return fail(err)
	}
	for _, kind := range kindsOfNamespaces {
		ns, err := os.Readlink(proc + "ns/" + kind)
		if err != nil {
			return fail(err)
		}
		s.namespaces += ns + " "
	}
	if s.capabilities, err = capabilitiesOf(pid); err != nil {
		return fail(err)
	}
	return s, nil
}

func capabilitiesOf(pid int) (effective [2]uint32, err error) {
	var data [2]unix.CapUserData
	err = unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(pid)}, &data[0])
	return [2]uint32{data[0].Effective, data[1].Effective}, err
}

// alike tells whether a command line means here what it means to the process at a
// connection's other end: that is the same program as ours, of the same user, and may
// see and do the same.
func (s surroundings) alike(conn *net.UnixConn, args []string) bool {
	var who *unix.Ucred
	handle := -1 // of the process; before Linux 6.5 there is none
	err := localsock.Control(conn, func(fd int) (err error) {
		if handle, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD); err != nil {
			handle = -1
		}
		who, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if handle >= 0 {
		defer unix.Close(handle)
	}
	if err != nil || int(who.Uid) != os.Geteuid() || who.Pid <= 0 { // 0: of a PID namespace that we don't see
		return false
	}
	o, err := surroundingsOf(int(who.Pid))
	if handle >= 0 && ended(uintptr(handle)) {
		return false // what was looked at may be another process, with its number
	}
	return err == nil && os.SameFile(s.program, o.program) && os.SameFile(s.root, o.root) &&
		s.namespaces == o.namespaces && s.capabilities == o.capabilities &&
		!slices.ContainsFunc(args, ofItself) && (s.dir == o.dir || !slices.ContainsFunc(args, mayBeRelative))
}

// ofItself tells whether an argument may name what is another file in each process: a
// descriptor of its own, or its namespace.
func ofItself(arg string) bool {
	return slices.ContainsFunc([]string{"/proc/self/", "/proc/thread-self/", "/dev/fd/", "/dev/std"}, func(path string) bool { return strings.Contains(arg, path) })
}

// mayBeRelative tells whether an argument may name a file by a path that begins in the
// directory of whoever typed it: as a container, or by --set NAME=@FILE.
func mayBeRelative(arg string) bool {
	if strings.HasPrefix(arg, "path:") || strings.Contains(arg, "@") {
		return true
	}
	if strings.HasPrefix(arg, "/") || !strings.Contains(arg, "/") {
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
