package sandbox_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"cleat/internal/sys/systest"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// A container can stall its own calls, by memory that never becomes available, by a
// socket lock that its thread holds, or by a file system that never answers. It delays no
// other container, and does not keep the network from ending.
func TestStalledContainerDelaysNobody(t *testing.T) {
	if !asRoot(t) {
		return
	}
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false).String()
	for _, means := range []string{"memory", "lock", "path"} {
		t.Run(means, func(t *testing.T) {
			s := newContainerNet(t, sandbox.Config{})
			stalled := s.start(t, "stall", means, server, t.TempDir())
			if output := stalled.line(t); output != "stalled" {
				t.Skip(output)
			}
			other := s.start(t, "stall-beside", server, filepath.Join(t.TempDir(), "socket"))
			if got := other.rest(t); got != "hello, bind ok" {
				t.Errorf("the other container printed %q", got)
			}
			s.end(t)
		})
	}
}

// stallBeside is the other container.
func stallBeside(args []string) error {
	output, err := ask("tcp", args[0])
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	fmt.Printf("%s, bind %s\n", output, errnoName(unix.Bind(fd, &unix.SockaddrUnix{Name: args[1]})))
	return nil
}

// stall makes a call that the supervisor can't complete, prints "stalled", and exits with
// its input. If it lacks the means it prints why.
func stall(args []string) error {
	to := netip.MustParseAddrPort(args[1])
	var err error
	switch args[0] {
	case "memory":
		err = stallByMemory()
	case "lock":
		err = stallByLock(&unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	case "path":
		err = stallByPath(args[2])
	}
	if err != nil {
		fmt.Println("can't stall:", err)
		return nil
	}
	fmt.Println("stalled")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func stallByMemory() error {
	memory, err := systest.NewUserfault()
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	go systest.ConnectAt(fd, memory.Address, unix.SizeofSockaddrInet4)
	return memory.Wait()
}

// stallByLock makes one thread hold a socket's lock while it waits for memory, and
// another make a call on the socket.
func stallByLock(to *unix.SockaddrInet4) error {
	memory, err := systest.NewUserfault()
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if err != nil {
		return err
	}
	go systest.WriteAt(fd, memory.Address, 1)
	if err := memory.Wait(); err != nil {
		return err
	}
	go unix.Connect(fd, to)
	// By the time the other container's connection reaches the supervisor, this call has
	// reached it.
	return nil
}

// stallByPath binds in a file system of its own that never answers a lookup.
func stallByPath(dir string) error {
	mounted := make(chan error)
	var fuse silentFS
	go func() {
		runtime.LockOSThread() // a mount namespace belongs to a thread
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			fuse, err = mountSilent(dir)
		}
		fd, socketErr := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		mounted <- errors.Join(err, socketErr)
		_ = unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, "socket")})
	}()
	if err := <-mounted; err != nil {
		return err
	}
	_, err := fuse.read() // the lookup of bind, which is never answered
	return err
}

// silentFS is a file system that answers only the request to initialize.
type silentFS int

// From include/uapi/linux/fuse.h.
const (
	fuseInit      = 26
	fuseInBytes   = 40 // struct fuse_in_header: length, opcode, unique, …
	fuseOutBytes  = 16 // struct fuse_out_header: length, error, unique
	fuseInitBytes = 64 // struct fuse_init_out
)

func mountSilent(dir string) (silentFS, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Mount("silent", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		return -1, err
	}
	s := silentFS(fd)
	request, err := s.read()
	if err != nil {
		return -1, err
	}
	native := binary.NativeEndian
	if native.Uint32(request[4:]) != fuseInit {
		return -1, errors.New("the first request is not FUSE_INIT")
	}
	answer := make([]byte, fuseOutBytes+fuseInitBytes)
	native.PutUint32(answer, uint32(len(answer)))
	copy(answer[8:16], request[8:16])
	native.PutUint32(answer[fuseOutBytes:], 7)       // protocol version
	native.PutUint32(answer[fuseOutBytes+4:], 31)    // minor version
	native.PutUint32(answer[fuseOutBytes+20:], 4096) // max_write
	_, err = unix.Write(fd, answer)
	return s, err
}

// read returns the next request.
func (s silentFS) read() ([]byte, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Read(int(s), buf)
	if err == nil && n < fuseInBytes {
		err = errors.New("short request")
	}
	return buf[:max(n, 0)], err
}
