package survey

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A descriptor may have been a namespace's when it was found, and be a socket's or a pipe's when it
// is opened. Its namespace counts as gone, and the open does not block.
func TestOpenAnotherDescriptor(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	pipe, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	in.Close() // opening a pipe without a writer would block
	for _, f := range []*os.File{socket, pipe} {
		path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		r := &reader{candidate: &candidate{id: 4026531840, paths: []string{path}}}
		if err := r.open(); !errors.Is(err, errGone) {
			t.Errorf("open %s: %v, want errGone", f.Name(), err)
		}
	}
}

// A name may be a symbolic link to a process's namespace.
func TestOpenSymlink(t *testing.T) {
	target, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	id, _ := nsID(target)
	name := filepath.Join(t.TempDir(), "blue")
	if err := os.Symlink("/proc/self/ns/net", name); err != nil {
		t.Fatal(err)
	}
	r := &reader{candidate: &candidate{id: id, paths: []string{name}}}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	r.close()
}
