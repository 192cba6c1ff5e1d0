package pasta

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// files are the open files that the command line asks to write to; nil if not asked for.
type files struct {
	ready *os.File // a pipe to the process that waits for the network, if any
	pid   *os.File
	log   *os.File
	pcap  *os.File
}

// openFiles opens the files as the current user.
func (o Options) openFiles() (files, error) {
	var f files
	var err error
	if o.PIDFile != "" {
		if f.pid, err = openRegular(o.PIDFile); err != nil {
			return f, fmt.Errorf("--pid: %w", err)
		}
	}
	if o.LogFile != "" {
		if f.log, err = openRegular(o.LogFile); err != nil {
			return f, fmt.Errorf("--log-file: %w", err)
		}
	}
	if o.Pcap != "" {
		if f.pcap, err = os.OpenFile(o.Pcap, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return f, fmt.Errorf("--pcap: %w", err)
		}
	}
	return f, nil
}

// openRegular opens a file for writing, without truncating it, or creates it. A device, a
// pipe or a directory is an error.
func openRegular(path string) (*os.File, error) {
	// O_NONBLOCK: do not wait for the reader of a pipe.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *files) writePID() error {
	if f.pid == nil {
		return nil
	}
	err := f.pid.Truncate(0)
	if err == nil {
		_, err = f.pid.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if closing := f.pid.Close(); err == nil {
		err = closing
	}
	f.pid = nil
	if err != nil {
		return fmt.Errorf("write process id: %w", err)
	}
	return nil
}

// environ is the variable that tells the copy which files it has inherited.
const environ = "CLEAT_PASTA_FILES"

// list returns the files in the order in which they are passed on.
func (f *files) list() []**os.File { return []**os.File{&f.ready, &f.pid, &f.log, &f.pcap} }

// hand returns the environment variable and the extra files for the copy.
func (f *files) hand() (env string, extra []*os.File) {
	var present []string
	for _, p := range f.list() {
		if *p == nil {
			present = append(present, "-")
			continue
		}
		present = append(present, strconv.Itoa(3+len(extra)))
		extra = append(extra, *p)
	}
	return environ + "=" + strings.Join(present, ","), extra
}

// handed takes over the files in a copy. It returns false in the original process. It
// removes the environment variable, so that no child inherits it.
func handed() (f files, is bool) {
	text, is := os.LookupEnv(environ)
	if !is {
		return f, false
	}
	os.Unsetenv(environ)
	places := f.list()
	for i, word := range strings.Split(text, ",") {
		fd, err := strconv.Atoi(word)
		if err != nil || fd < 3 || i >= len(places) {
			continue
		}
		unix.CloseOnExec(fd)
		*places[i] = os.NewFile(uintptr(fd), [...]string{"ready", "pid", "log", "pcap"}[i])
	}
	return f, true
}

func (f *files) close() {
	for _, p := range f.list() {
		if *p != nil {
			(*p).Close()
			*p = nil
		}
	}
}

// closeInherited closes descriptors beyond standard error that the caller left open. They
// are not meant for this process, and an open pipe would never end for its reader.
func closeInherited() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // without /proc, none can be found
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 { // our own are all closed on exec
			unix.Close(fd)
		}
	}
}
