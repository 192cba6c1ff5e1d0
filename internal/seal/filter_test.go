package seal

import (
	"encoding/binary"
	"os"
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
	prog, err := instructions(slices.Concat(Runtime(), []Call{
		{Number: unix.SYS_SOCKET, When: []Condition{ArgIs(0, unix.AF_INET, unix.AF_INET6), ArgHas(1, 0xf, unix.SOCK_DGRAM)}},
		{Number: unix.SYS_SOCKET, When: []Condition{ArgIs(0, unix.AF_NETLINK), ArgIs(2, unix.NETLINK_ROUTE)}},
		{Number: unix.SYS_BIND},
	}))
	if err != nil {
		t.Fatal(err)
	}
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	const passes = unix.SECCOMP_RET_ALLOW
	refused, unknown, killed := int(deny.Val), int(unknown.Val), int(kill.Val)
	const udp = unix.SOCK_DGRAM
	for _, tt := range []struct {
		name string
		arch uint32
		nr   uint32
		args []uint64
		want int
	}{
		{"the first entry", sys.NativeArch, unix.SYS_READ, nil, passes},
		{"the last entry", sys.NativeArch, unix.SYS_BIND, nil, passes},
		{"not listed", sys.NativeArch, unix.SYS_EXECVE, nil, refused},
		{"first value of the first alternative", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, udp, 0}, passes},
		{"its second value", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET6, udp, 0}, passes},
		{"bits that are not looked at", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET6, udp | unix.SOCK_CLOEXEC, 0}, passes},
		{"its second condition fails", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_RAW, 0}, refused},
		{"second alternative", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, passes},
		{"its second condition fails", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, refused},
		{"no alternative", sys.NativeArch, unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, refused},
		{"a process", sys.NativeArch, unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, refused},
		{"a thread", sys.NativeArch, unix.SYS_CLONE, []uint64{threadFlags | unix.CLONE_SYSVSEM}, passes},
		{"a thread in another network", sys.NativeArch, unix.SYS_CLONE, []uint64{threadFlags | unix.CLONE_NEWNET}, refused},
		{"flags that can't be seen", sys.NativeArch, unix.SYS_CLONE3, nil, unknown},
		{"read a file", sys.NativeArch, unix.SYS_OPENAT, []uint64{0, 0, unix.O_RDONLY | unix.O_CLOEXEC}, passes},
		{"write a file", sys.NativeArch, unix.SYS_OPENAT, []uint64{0, 0, unix.O_RDWR}, refused},
		{"make a file", sys.NativeArch, unix.SYS_OPENAT, []uint64{0, 0, unix.O_RDONLY | unix.O_CREAT}, refused},
		{"executable memory", sys.NativeArch, unix.SYS_MMAP, []uint64{0, 4096, unix.PROT_READ | unix.PROT_EXEC}, refused},
		{"read a limit", sys.NativeArch, unix.SYS_PRLIMIT64, []uint64{0, 0, 0, 4096}, passes},
		{"set a limit", sys.NativeArch, unix.SYS_PRLIMIT64, []uint64{0, 0, 1 << 32, 0}, refused},
		{"signal itself", sys.NativeArch, unix.SYS_TGKILL, []uint64{uint64(os.Getpid()), 1, 23}, passes},
		{"signal another", sys.NativeArch, unix.SYS_TGKILL, []uint64{uint64(os.Getppid()), 1, 23}, refused},
		{"x32", sys.NativeArch, 0x40000000 | unix.SYS_READ, nil, refused},
		{"another architecture", 0x12345678, unix.SYS_READ, nil, killed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := make([]byte, sys.SeccompArgs+6*8)
			put := func(at int, v uint32) { binary.BigEndian.PutUint32(data[at:], v) } // byte order of the virtual machine
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

func TestFilterThatCannotBe(t *testing.T) {
	many := make([]uint32, 300)
	for name, calls := range map[string][]Call{
		"behind one that always passes": {{Number: 1}, {Number: 1, When: []Condition{ArgIs(0, 1)}}},
		"too many values":               {{Number: 1, When: []Condition{ArgIs(0, many...)}}},
	} {
		if _, err := instructions(calls); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := instructions([]Call{{Number: 1, When: []Condition{ArgIs(0, 1)}}, {Number: 1}}); err != nil {
		t.Errorf("an exception and then the rule: %v", err)
	}
}
