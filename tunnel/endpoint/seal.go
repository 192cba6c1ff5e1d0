package endpoint

import (
	"errors"
	"os"
	"slices"

	"cleat/internal/seal"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// SealConfig lists what a tunnel's process needs besides moving packets.
type SealConfig struct {
	// Reread are files that are read again by the same names: those of the tunnel and its
	// key. Their directories stay readable, because files are usually replaced rather
	// than rewritten. Anything but a regular file is ignored.
	Reread []string
	// Read are further files and directories to be read.
	Read []string
	// Remove is a file to be removed at the end, or "".
	Remove string
}

// Seal drops the privileges of a process that from now on only runs an Endpoint and its
// control server, whose listeners are open. The process keeps what it needs to move
// packets, read and remove the files in cfg, open UDP sockets, also on devices and with
// ports below 1024, and change addresses, routes and the MTU of devices. If a file in cfg
// can be read only with a capability, it keeps that. Seal can't be undone.
//
// The error says what could not be dropped; everything else has been, and the process can
// go on.
func Seal(cfg SealConfig) (seal.State, error) {
	c := seal.Config{Calls: sealedCalls(cfg.Remove != ""), Read: cfg.Read}
	var reread []string
	for _, path := range cfg.Reread {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			reread = append(reread, path)
			c.Read = append(c.Read, seal.DirsOf(path)...)
		}
	}
	if cfg.Remove != "" {
		c.Remove = []string{cfg.Remove}
	}
	c.Capabilities = neededCapabilities(reread)
	return seal.Process(c)
}

// neededCapabilities returns the capabilities that a tunnel needs, if it has them.
func neededCapabilities(reread []string) uint64 {
	const always = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_BIND_SERVICE
	need := uint64(always)
	if errors.Is(sys.WithCapabilities(need, bindToDevice), unix.EPERM) {
		need |= 1 << unix.CAP_NET_RAW
	}
	for _, more := range []uint64{0, 1 << unix.CAP_DAC_READ_SEARCH, 1 << unix.CAP_DAC_OVERRIDE} {
		if sys.WithCapabilities(need|more, func() error { return openAll(reread) }) == nil {
			return need | more
		}
	}
	return need
}

// bindToDevice binds a socket to a device, which takes CAP_NET_RAW before Linux 5.7.
func bindToDevice() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.BindToDevice(fd, "lo"), unix.Close(fd))
}

// openAll opens files, to see whether that is allowed.
func openAll(paths []string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// sealedCalls returns the system calls of a sealed process, the most frequent first.
func sealedCalls(remove bool) []seal.Call {
	calls := slices.Concat([]seal.Call{
		{Number: unix.SYS_SENDMMSG}, {Number: unix.SYS_RECVMMSG}, {Number: unix.SYS_SENDMSG}, {Number: unix.SYS_RECVMSG},
		{Number: unix.SYS_SENDTO}, {Number: unix.SYS_RECVFROM},
	}, seal.Runtime(), []seal.Call{
		// sockets of paths, and those that watch and change devices
		{Number: unix.SYS_SOCKET, When: []seal.Condition{
			seal.ArgIs(0, unix.AF_INET, unix.AF_INET6),
			seal.ArgHas(1, sockTypeMask, unix.SOCK_DGRAM),
			seal.ArgIs(2, 0),
		}},
		{Number: unix.SYS_SOCKET, When: []seal.Condition{
			seal.ArgIs(0, unix.AF_NETLINK),
			seal.ArgHas(1, sockTypeMask, unix.SOCK_RAW),
			seal.ArgIs(2, unix.NETLINK_ROUTE),
		}},
		{Number: unix.SYS_CONNECT}, {Number: unix.SYS_BIND},
		{Number: unix.SYS_GETSOCKOPT}, {Number: unix.SYS_SETSOCKOPT}, {Number: unix.SYS_GETSOCKNAME}, {Number: unix.SYS_GETPEERNAME},
		// maps and links of BPF programs that are already loaded
		{Number: unix.SYS_BPF, When: []seal.Condition{seal.ArgIs(0, unix.BPF_MAP_LOOKUP_ELEM, unix.BPF_MAP_UPDATE_ELEM, unix.BPF_MAP_DELETE_ELEM, unix.BPF_LINK_CREATE)}},
		// clients of listeners that are already open
		{Number: unix.SYS_ACCEPT4}, {Number: unix.SYS_SHUTDOWN},
	})
	if remove {
		calls = append(calls, seal.Call{Number: unix.SYS_UNLINKAT, When: []seal.Condition{seal.ArgIs(2, 0)}})
	}
	return calls
}

// sockTypeMask is SOCK_TYPE_MASK (include/linux/net.h): the part of socket(2)'s second
// argument that holds no flags.
const sockTypeMask = 0xf
