package endpoint

import (
	"errors"
	"os"
	"slices"

	"cleat/internal/seal"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// SealConfig says what the process of a tunnel needs besides moving packets.
type SealConfig struct {
	// Reread are files that are to be read again, by the same names: the tunnel's and its
	// key's. The directories that they are in stay readable, because files are replaced as
	// a rule rather than rewritten. What is no regular file is left out.
	Reread []string
	// Read are further files and directories to be read.
	Read []string
	// Remove is a file to be removed at the end; "": none.
	Remove string
}

// Seal is for a process that does nothing else from now on than what an Endpoint and its
// control server do, their listeners being open. Besides moving packets and reading what
// cfg names, that is: to open UDP sockets, also ones bound to devices and with ports below
// 1024, and to change addresses, routes and the MTU of devices. For files that only a
// capability lets be read it keeps that. It can't be undone.
//
// The error says what could not be done; all the rest has been, and the process works on.
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
	c.Capabilities = needed(reread)
	return seal.Process(c)
}

// needed are the capabilities that a tunnel can't do without, if it has them.
func needed(reread []string) uint64 {
	const always = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_BIND_SERVICE
	need := uint64(always)
	if errors.Is(sys.WithCapabilities(need, bindToDevice), unix.EPERM) {
		need |= 1 << unix.CAP_NET_RAW
	}
	for _, more := range []uint64{0, 1 << unix.CAP_DAC_READ_SEARCH, 1 << unix.CAP_DAC_OVERRIDE} {
		if sys.WithCapabilities(need|more, func() error { return readable(reread) }) == nil {
			return need | more
		}
	}
	return need
}

// bindToDevice tries that on a socket, which takes CAP_NET_RAW before Linux 5.7.
func bindToDevice() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.BindToDevice(fd, "lo"), unix.Close(fd))
}

// readable opens files.
func readable(paths []string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// sealedCalls are what a sealed process may do. The most frequent come first.
func sealedCalls(remove bool) []seal.Call {
	calls := slices.Concat([]seal.Call{
		{Number: unix.SYS_SENDMMSG}, {Number: unix.SYS_RECVMMSG}, {Number: unix.SYS_SENDMSG}, {Number: unix.SYS_RECVMSG},
		{Number: unix.SYS_SENDTO}, {Number: unix.SYS_RECVFROM},
	}, seal.Runtime(), []seal.Call{
		// sockets: of paths, and to ask and tell the kernel about devices
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
		// those who ask and tell us, at listeners that are open
		{Number: unix.SYS_ACCEPT4}, {Number: unix.SYS_SHUTDOWN},
	})
	if remove {
		calls = append(calls, seal.Call{Number: unix.SYS_UNLINKAT, When: []seal.Condition{seal.ArgIs(2, 0)}})
	}
	return calls
}

// sockTypeMask is SOCK_TYPE_MASK (include/linux/net.h): what of socket(2)'s second
// argument is no flag.
const sockTypeMask = 0xf
