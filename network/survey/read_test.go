package survey

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A descriptor that was a namespace's and is a socket's or a pipe's by now is one of
// a namespace that is gone: it is neither an error nor waited for.
func TestOpenSpaceOfAnotherDescriptor(t *testing.T) {
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
	in.Close() // whoever opens the pipe waits for one
	for _, f := range []*os.File{socket, pipe} {
		path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		if s, err := openSpace(&place{id: 4026531840, paths: []string{path}}); !errors.Is(err, errGone) {
			t.Errorf("%s: %v, %v", f.Name(), s, err)
		}
	}
}

// A name may be a link to a process's namespace.
func TestOpenSpaceByLink(t *testing.T) {
	target, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	id, _ := nsID(target)
	name := filepath.Join(t.TempDir(), "blue")
	if err := os.Symlink("/proc/self/ns/net", name); err != nil {
		t.Fatal(err)
	}
	s, err := openSpace(&place{id: id, paths: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	s.close()
}
