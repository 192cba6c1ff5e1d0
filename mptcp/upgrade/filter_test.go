package upgrade

import (
	"encoding/binary"
	"testing"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func TestFilter(t *testing.T) {
	if sys.NativeArch == 0 {
		t.Skip(sys.ErrSeccompArch)
	}
	vm, err := bpf.NewVM(instructions())
	if err != nil {
		t.Fatal(err)
	}
	const passes, waits = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_USER_NOTIF
	const tcp = unix.SOCK_STREAM
	for _, tt := range []struct {
		name string
		arch uint32
		nr   uint32
		args []uint64
		want int
	}{
		{"IPv4", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, tcp, 0}, waits},
		{"IPv6", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET6, tcp, 0}, waits},
		{"TCP by its number", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, tcp, unix.IPPROTO_TCP}, waits},
		{"flags", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, tcp | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, 0}, waits},
		{"high bits, which the kernel does not look at", sys.NativeArch, unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_INET, 1<<40 | tcp, 1 << 33}, waits},
		{"MPTCP already", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, tcp, unix.IPPROTO_MPTCP}, passes},
		{"SCTP", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, tcp, unix.IPPROTO_SCTP}, passes},
		{"UDP", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, 0}, passes},
		{"raw", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP}, passes},
		{"sequenced packets", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_SEQPACKET, 0}, passes},
		{"Unix", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_UNIX, tcp, 0}, passes},
		{"netlink", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}, passes},
		{"another call", sys.NativeArch, unix.SYS_SOCKETPAIR, []uint64{unix.AF_INET, tcp, 0}, passes},
		{"x32", sys.NativeArch, 0x40000000 | unix.SYS_SOCKET, []uint64{unix.AF_INET, tcp, 0}, passes},
		{"another architecture", 0x12345678, unix.SYS_SOCKET, []uint64{unix.AF_INET, tcp, 0}, passes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := make([]byte, sys.SeccompArgs+6*8)
			put := func(at int, v uint32) { binary.BigEndian.PutUint32(data[at:], v) } // as the virtual machine reads
			put(sys.SeccompNr, tt.nr)
			put(sys.SeccompArch, tt.arch)
			for i, v := range tt.args {
				put(sys.SeccompArgs+8*i, uint32(v))
				put(sys.SeccompArgs+8*i+4, uint32(v>>32))
			}
			if got, err := vm.Run(data); err != nil || got != tt.want {
				t.Errorf("number %d, arguments %x: %#x, %v; want %#x", tt.nr, tt.args, got, err, tt.want)
			}
		})
	}
}
