package sandbox_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/internal/sys/systest"
	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// forbiddenServer listens on the host's loopback, which no guest may reach, and counts
// its clients.
func forbiddenServer(t *testing.T) (netip.AddrPort, *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var n atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort(), &n
}

// Each known way to bypass the supervisor fails. The forbidden address is on the host's
// loopback. In the namespace it is the guest's own loopback, where nobody listens. So a
// client that arrives has used a socket of the host.
func TestSeccompTierCannotBeBypassed(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", true)
	for _, tt := range []struct{ method, want string }{
		{"io_uring", "ENOSYS"},
		{"fast-open", "sendto ENOTSUP, sendmsg ENOTSUP, sendmmsg ENOTSUP, option ENOPROTOOPT"},
		{"i386", "connect ENOSYS, socketcall ENOSYS"},
		{"x32", "ENOSYS"},
		{"child", "ECONNREFUSED"},
		{"message", "EISCONN"},
		{"pidfd", "EISCONN"},
		{"changing-address", "done"},
		{"changing-descriptor", "done"},
	} {
		t.Run(tt.method, func(t *testing.T) {
			if tt.method == "i386" && runtime.GOARCH != "amd64" {
				t.Skip("i386 programs need an amd64 kernel")
			}
			if tt.method == "x32" && !systest.HasX32() {
				t.Skip("this kernel has no x32")
			}
			forbidden, arrived := forbiddenServer(t)
			got, _ := runSupervised(t, sandbox.Config{}, "escape", tt.method, server.String(), forbidden.String())
			if tt.method == "i386" && got == "connect ENOEXEC, socketcall ENOEXEC" {
				t.Skip("this kernel does not run i386 programs")
			}
			if got != tt.want {
				t.Errorf("the guest printed %q, want %q", got, tt.want)
			}
			if n := arrived.Load(); n != 0 {
				t.Errorf("%d connections to the forbidden server", n)
			}
		})
	}
}

// escape tries one way to reach a forbidden address.
func escape(args []string) error {
	inet := func(text string) *unix.SockaddrInet4 {
		a := netip.MustParseAddrPort(text)
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	allowed, forbidden := inet(args[1]), inet(args[2])
	connected := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Connect(fd, allowed)
		}
		if err != nil {
			panic(err)
		}
		return fd
	}
	switch args[0] {
	case "io_uring":
		fmt.Println(errnoName(systest.SetUpIOURing()))
	case "fast-open":
		return escapeByFastOpen(forbidden)
	case "i386":
		return escapeByI386(forbidden)
	case "x32":
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fmt.Println(errnoName(systest.ConnectByX32(fd, rawSockaddr(forbidden))))
	case "child":
		cmd := exec.Command("/proc/self/exe", "tcp", args[2])
		cmd.Env = append(os.Environ(), guestEnv+"=dial")
		out, err := cmd.CombinedOutput()
		fmt.Print(string(out))
		return err
	case "message":
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(connected()), nil, 0); err != nil {
			return err
		}
		return inChild("use-message", pair[1], args[2])
	case "pidfd":
		return inChild("use-pidfd", connected(), args[2])
	case "other-links":
		own, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fmt.Println(errnoName(unix.BindToDevice(connected(), "lo")), "own:", errnoName(unix.BindToDevice(own, "lo")))
	case "changing-address":
		changeAddress(allowed, forbidden)
		fmt.Println("done")
	case "changing-descriptor":
		return changeDescriptor(connected(), forbidden)
	}
	return nil
}

func escapeByFastOpen(to *unix.SockaddrInet4) error {
	fd := func() int {
		fd, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return fd
	}
	word := []byte("x")
	_, one := unix.SendmsgN(fd(), word, nil, to, unix.MSG_FASTOPEN)
	fmt.Printf("sendto %s, sendmsg %s, sendmmsg %s, option %s\n", errnoName(unix.Sendto(fd(), word, unix.MSG_FASTOPEN, to)), errnoName(one),
		errnoName(systest.SendManyWithSYN(fd(), rawSockaddr(to))), errnoName(unix.SetsockoptInt(fd(), unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)))
	return nil
}

// rawSockaddr returns a struct sockaddr_in.
func rawSockaddr(sa *unix.SockaddrInet4) []byte {
	b := binary.NativeEndian.AppendUint16(make([]byte, 0, unix.SizeofSockaddrInet4), unix.AF_INET)
	b = append(append(b, byte(sa.Port>>8), byte(sa.Port)), sa.Addr[:]...)
	return b[:unix.SizeofSockaddrInet4]
}

// escapeByI386 runs programs for i386 that open a socket, connect it and exit with the
// errno.
func escapeByI386(to *unix.SockaddrInet4) error {
	address := rawSockaddr(to)
	direct := func(data uint32) []byte {
		c := []byte{0x31, 0xd2, 0xb8, 0x67, 1, 0, 0, 0xbb, 2, 0, 0, 0, 0xb9, 1, 0, 0, 0, 0xcd, 0x80} // socket(2, 1, 0) is 359
		c = append(c, 0x89, 0xc3, 0xb8, 0x6a, 1, 0, 0, 0xb9)                                         // connect is 362
		c = binary.LittleEndian.AppendUint32(c, data)
		c = append(c, 0xba, 16, 0, 0, 0, 0xcd, 0x80)
		return append(c, exitI386...)
	}
	call := func(data uint32) []byte { // socketcall(SYS_CONNECT, {0, address, 16})
		c := []byte{0xb8, 102, 0, 0, 0, 0xbb, 3, 0, 0, 0, 0xb9}
		c = binary.LittleEndian.AppendUint32(c, data+16)
		c = append(c, 0xcd, 0x80)
		return append(c, exitI386...)
	}
	fmt.Printf("connect %s, socketcall %s\n", runI386(direct, address), runI386(call, address))
	return nil
}

// runI386 runs a program for i386 that exits with an errno, and returns the errno's name.
func runI386(code func(data uint32) []byte, address []byte) string {
	dir, err := os.MkdirTemp("", "i386-")
	if err != nil {
		return err.Error()
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "program")
	if err := os.WriteFile(path, elf32(code, address), 0o700); err != nil {
		return err.Error()
	}
	err = exec.Command(path).Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return unix.ErrnoName(syscall.Errno(exit.ExitCode()))
	}
	return errnoName(err)
}

// callI386 returns code that makes a call and exits with its errno, or 0.
func callI386(nr uint32, args [4]uint32) []byte {
	var c []byte
	for i, load := range []byte{0xbb, 0xb9, 0xba, 0xbe} { // mov to ebx, ecx, edx, esi
		c = binary.LittleEndian.AppendUint32(append(c, load), args[i])
	}
	c = binary.LittleEndian.AppendUint32(append(c, 0xb8), nr)
	c = append(c, 0xcd, 0x80) // int 0x80
	c = append(c, 0x85, 0xc0) // test eax, eax
	c = append(c, 0x78, 0x02) // js over the next instruction
	c = append(c, 0x31, 0xc0) // xor eax, eax
	return append(c, exitI386...)
}

// exitI386 is exit(-eax).
var exitI386 = []byte{0xf7, 0xd8, 0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80}

// elf32 returns a program of one segment: code, then an address and the arguments of a
// socketcall.
func elf32(code func(data uint32) []byte, address []byte) []byte {
	const base, headers = 0x08048000, 52 + 32
	size := uint32(len(code(0)))
	data := uint32(base+headers) + size
	body := append(code(data), address...)
	body = binary.LittleEndian.AppendUint32(body, 0) // descriptor 0 will do: no call gets that far
	body = binary.LittleEndian.AppendUint32(body, data)
	body = binary.LittleEndian.AppendUint32(body, 16)
	le := binary.LittleEndian
	h := append([]byte{0x7f, 'E', 'L', 'F', 1, 1, 1}, make([]byte, 9)...)
	for _, v := range []uint16{2, 3} { // an executable for i386
		h = le.AppendUint16(h, v)
	}
	for _, v := range []uint32{1, base + headers, 52, 0, 0} {
		h = le.AppendUint32(h, v)
	}
	for _, v := range []uint16{52, 32, 1, 0, 0, 0} {
		h = le.AppendUint16(h, v)
	}
	all := uint32(headers + len(body))
	for _, v := range []uint32{1, 0, base, base, all, all, 7, 0x1000} {
		h = le.AppendUint32(h, v)
	}
	return append(h, body...)
}

// inChild runs a child that inherits a descriptor as number 3.
func inChild(role string, fd int, forbidden string) error {
	cmd := exec.Command("/proc/self/exe", forbidden, fmt.Sprint(fd), fmt.Sprint(os.Getpid()))
	cmd.Env = append(os.Environ(), guestEnv+"="+role)
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(fd), "passed")}
	out, err := cmd.CombinedOutput()
	fmt.Print(string(out))
	return err
}

func useMessage(args []string) error {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(3, make([]byte, 1), oob, 0)
	if err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	return reconnect(fds[0], args[0])
}

func usePidfd(args []string) error {
	var theirs, parent int
	if _, err := fmt.Sscan(args[1]+" "+args[2], &theirs, &parent); err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(parent, 0)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdGetfd(pidfd, theirs, 0)
	if err != nil {
		return err
	}
	return reconnect(fd, args[0])
}

// reconnect disconnects a socket and connects it to another address.
func reconnect(fd int, to string) error {
	a := netip.MustParseAddrPort(to)
	_ = sys.Disconnect(fd)
	fmt.Println(errnoName(unix.Connect(fd, &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())})))
	return nil
}

// tries is how often a race is run.
const tries = 300

// changeAddress connects while another thread alternates the address between two.
func changeAddress(allowed, forbidden *unix.SockaddrInet4) {
	one, other := rawSockaddr(allowed), rawSockaddr(forbidden)
	shared := bytes.Clone(one)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			copy(shared, other)
			copy(shared, one)
		}
	}()
	for range tries {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			break
		}
		_ = sys.ConnectWaiting(fd, shared)
		unix.Close(fd)
	}
	stop.Store(true)
	<-done
}

// changeDescriptor connects and binds Unix sockets, which is left to the kernel, while
// another thread replaces them by a socket of the host. The address is first none, until
// that has disconnected the socket, which Landlock does not see. Then it is a port of the
// host, since the socket gets none by itself, and then the forbidden address.
func changeDescriptor(host int, forbidden *unix.SockaddrInet4) error {
	local := make([]byte, unix.SizeofSockaddrInet4)
	binary.NativeEndian.PutUint16(local, unix.AF_UNIX)
	addresses := [][]byte{make([]byte, len(local)), rawSockaddr(&unix.SockaddrInet4{Port: forbidden.Port ^ 1}), rawSockaddr(forbidden)}
	shared := bytes.Clone(local)
	const victim = 0 // replacing it by dup3(2) does not notify the supervisor
	plain, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(plain, &unix.SockaddrUnix{})
	}
	if err != nil {
		return err
	}
	var stop atomic.Bool
	var phase atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			_ = unix.Dup3(plain, victim, 0)
			copy(shared, local)
			for range 1 << 14 { // about as long as the supervisor takes to inspect the socket
				stop.Load()
			}
			_ = unix.Dup3(host, victim, 0)
			copy(shared, addresses[phase.Load()])
			for range 1 << 12 {
				stop.Load()
			}
		}
	}()
	for begin := time.Now(); time.Since(begin) < 4*time.Second; {
		switch phase.Load() {
		case 0:
			_ = sys.ConnectWaiting(victim, shared)
			if _, err := unix.Getpeername(host); errors.Is(err, unix.ENOTCONN) {
				phase.Store(1)
			}
		case 1:
			if sys.BindRaw(victim, shared) == 0 { // the plain socket is bound already
				phase.Store(2)
			}
			_ = unix.Listen(victim, 1)
		case 2:
			_ = sys.ConnectWaiting(victim, shared)
		}
	}
	stop.Store(true)
	<-done
	if n, err := unix.GetsockoptInt(host, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && n != 0 {
		fmt.Println("a socket of the host is listening")
	}
	if phase.Load() == 2 {
		fmt.Println("a socket of the host is bound to a chosen port")
	}
	fmt.Println("done")
	return nil
}
