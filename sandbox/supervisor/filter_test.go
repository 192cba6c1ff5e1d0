package supervisor

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func TestFilter(t *testing.T) {
	if sys.NativeArch == 0 {
		t.Skip(sys.ErrSeccompArch)
	}
	const allowed, notifies = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_USER_NOTIF
	tests := []filterTest{
		{"connect", sys.NativeArch, unix.SYS_CONNECT, nil, notifies},
		{"bind", sys.NativeArch, unix.SYS_BIND, nil, notifies},
		{"listen", sys.NativeArch, unix.SYS_LISTEN, nil, notifies},
		{"read", sys.NativeArch, unix.SYS_READ, nil, allowed},
		{"accept", sys.NativeArch, unix.SYS_ACCEPT4, nil, allowed},
		{"epoll_create1", sys.NativeArch, unix.SYS_EPOLL_CREATE1, nil, notifies},
		{"dup", sys.NativeArch, unix.SYS_DUP, []uint64{7}, notifies},
		{"dup of stdout", sys.NativeArch, unix.SYS_DUP, []uint64{1}, allowed},
		{"dup3 to stdout", sys.NativeArch, unix.SYS_DUP3, []uint64{7, 1}, allowed},
		{"dup3", sys.NativeArch, unix.SYS_DUP3, []uint64{7, 9}, notifies},
		{"F_GETFL", sys.NativeArch, unix.SYS_FCNTL, []uint64{7, unix.F_GETFL}, allowed},
		{"F_DUPFD", sys.NativeArch, unix.SYS_FCNTL, []uint64{7, unix.F_DUPFD}, notifies},
		{"F_DUPFD_CLOEXEC", sys.NativeArch, unix.SYS_FCNTL, []uint64{7, unix.F_DUPFD_CLOEXEC}, notifies},
		{"F_DUPFD of stdin", sys.NativeArch, unix.SYS_FCNTL, []uint64{0, unix.F_DUPFD}, allowed},
		{"sendto", sys.NativeArch, unix.SYS_SENDTO, []uint64{7, 0, 0, unix.MSG_NOSIGNAL}, allowed},
		{"sendto with MSG_FASTOPEN", sys.NativeArch, unix.SYS_SENDTO, []uint64{7, 0, 0, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL}, fails(unix.EOPNOTSUPP)},
		{"sendto with MSG_FASTOPEN and high bits", sys.NativeArch, unix.SYS_SENDTO, []uint64{7, 0, 0, 1<<40 | unix.MSG_FASTOPEN}, fails(unix.EOPNOTSUPP)},
		{"sendmsg with MSG_FASTOPEN", sys.NativeArch, unix.SYS_SENDMSG, []uint64{7, 0, unix.MSG_FASTOPEN}, fails(unix.EOPNOTSUPP)},
		{"sendmmsg with MSG_FASTOPEN", sys.NativeArch, unix.SYS_SENDMMSG, []uint64{7, 0, 1, unix.MSG_FASTOPEN}, fails(unix.EOPNOTSUPP)},
		{"plain option", sys.NativeArch, unix.SYS_SETSOCKOPT, []uint64{7, unix.IPPROTO_TCP, unix.TCP_NODELAY}, allowed},
		{"rare option", sys.NativeArch, unix.SYS_SETSOCKOPT, []uint64{7, unix.SOL_SOCKET, unix.SO_MARK}, notifies},
		{"same number, other level", sys.NativeArch, unix.SYS_SETSOCKOPT, []uint64{7, unix.SOL_SOCKET, unix.TCP_FASTOPEN_CONNECT}, notifies},
		{"option of another kind of socket", sys.NativeArch, unix.SYS_SETSOCKOPT, []uint64{7, unix.SOL_NETLINK, 1}, allowed},
		{"TCP_FASTOPEN_CONNECT", sys.NativeArch, unix.SYS_SETSOCKOPT, []uint64{7, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT}, fails(unix.ENOPROTOOPT)},
		{"IP_LOCAL_PORT_RANGE", sys.NativeArch, unix.SYS_SETSOCKOPT, []uint64{7, unix.IPPROTO_IP, localPortRange}, fails(unix.ENOPROTOOPT)},
		{"IP_OPTIONS", sys.NativeArch, unix.SYS_SETSOCKOPT, []uint64{7, unix.IPPROTO_IP, unix.IP_OPTIONS}, fails(unix.ENOPROTOOPT)},
		{"IPV6_RTHDR", sys.NativeArch, unix.SYS_SETSOCKOPT, []uint64{7, unix.IPPROTO_IPV6, unix.IPV6_RTHDR}, fails(unix.ENOPROTOOPT)},
		{"io_uring", sys.NativeArch, unix.SYS_IO_URING_SETUP, nil, fails(unix.ENOSYS)},
		{"unknown architecture", 0x12345678, unix.SYS_READ, nil, fails(unix.ENOSYS)},
		{"ordinary call of the foreign architecture", foreignArch, 4, nil, allowed},
	}
	for _, c := range foreignCalls {
		if _, ok := c.how.(refused); ok {
			tests = append(tests, filterTest{"foreign architecture: " + c.name, foreignArch, c.nr, nil, fails(unix.ENOSYS)})
		}
	}
	if otherABI != 0 {
		tests = append(tests, filterTest{"call of the other ABI", sys.NativeArch, otherABI | unix.SYS_CONNECT, nil, fails(unix.ENOSYS)})
	}
	tests = append(tests, familyTests(foreignCalls)...)
	decideAll(t, instructions(supervisedCalls, foreignCalls), tests)
}

// The filter of the other tiers restricts the families of sockets and nothing else.
func TestSocketFilter(t *testing.T) {
	if sys.NativeArch == 0 {
		t.Skip(sys.ErrSeccompArch)
	}
	tests := familyTests(foreignSocketCalls)
	for nr := range uint32(500) {
		if !slices.ContainsFunc(socketCalls, func(c call) bool { return c.nr == nr }) {
			tests = append(tests, filterTest{fmt.Sprint("call ", nr), sys.NativeArch, nr, []uint64{unix.AF_VSOCK, 1, 2, 3, 4, 5}, unix.SECCOMP_RET_ALLOW})
		}
	}
	if foreignArch == unix.AUDIT_ARCH_I386 {
		const socket, bind, socketpair = 1, 2, 8
		for sub, want := range map[uint64]int{
			socket: fails(unix.ENOSYS), socketpair: fails(unix.ENOSYS), bind: unix.SECCOMP_RET_ALLOW, 1<<32 | socket: fails(unix.ENOSYS),
		} {
			tests = append(tests, filterTest{fmt.Sprint("socketcall ", sub), foreignArch, 102, []uint64{sub}, want})
		}
	}
	if otherABI != 0 {
		tests = append(tests, filterTest{"socket of the other ABI", sys.NativeArch, otherABI | unix.SYS_SOCKET, []uint64{unix.AF_INET}, fails(unix.ENOSYS)})
	}
	decideAll(t, instructions(socketCalls, foreignSocketCalls), tests)
}

// familyTests returns tests of the calls that make sockets, of the native and the foreign
// architecture.
func familyTests(foreign []call) []filterTest {
	var tests []filterTest
	add := func(arch, nr uint32, name string) {
		for family := range uint64(64) {
			want := fails(unix.EAFNOSUPPORT)
			switch family {
			case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET:
				want = unix.SECCOMP_RET_ALLOW
			}
			for _, high := range []uint64{0, 1 << 32} { // the kernel uses the lower 32 bits
				tests = append(tests, filterTest{fmt.Sprintf("%s of %#x", name, high|family), arch, nr, []uint64{high | family, unix.SOCK_STREAM, 0}, want})
			}
		}
		tests = append(tests, filterTest{name + " of -1", arch, nr, []uint64{1<<64 - 1}, fails(unix.EAFNOSUPPORT)})
	}
	add(sys.NativeArch, unix.SYS_SOCKET, "socket")
	add(sys.NativeArch, unix.SYS_SOCKETPAIR, "socketpair")
	found := 0
	for _, c := range foreign {
		if c.name == "socket" || c.name == "socketpair" {
			add(foreignArch, c.nr, "foreign architecture: "+c.name)
			found++
		}
		if c.name == "io_uring_setup" {
			tests = append(tests, filterTest{"io_uring of the foreign architecture", foreignArch, c.nr, nil, fails(unix.ENOSYS)})
			found++
		}
	}
	if found != 3 {
		panic("the table of the foreign architecture lacks calls")
	}
	return append(tests, filterTest{"io_uring", sys.NativeArch, unix.SYS_IO_URING_SETUP, nil, fails(unix.ENOSYS)})
}

// filterTest is a call and the expected decision.
type filterTest struct {
	name string
	arch uint32
	nr   uint32
	args []uint64
	want int
}

func fails(errno unix.Errno) int { return unix.SECCOMP_RET_ERRNO | int(errno) }

func decideAll(t *testing.T, filter []bpf.Instruction, tests []filterTest) {
	vm, err := bpf.NewVM(filter)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data := make([]byte, sys.SeccompArgs+6*8)
			put := func(at int, v uint32) { binary.BigEndian.PutUint32(data[at:], v) } // the byte order of bpf.VM
			put(sys.SeccompNr, tt.nr)
			put(sys.SeccompArch, tt.arch)
			for i, v := range tt.args {
				put(sys.SeccompArgs+8*i, uint32(v))
				put(sys.SeccompArgs+8*i+4, uint32(v>>32))
			}
			if got, err := vm.Run(data); err != nil || got != tt.want {
				t.Errorf("call %d, arguments %x: got %#x, %v, want %#x", tt.nr, tt.args, got, err, tt.want)
			}
		})
	}
}
