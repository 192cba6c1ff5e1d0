package names

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"cleat/internal/localsock"
	"cleat/internal/seal"
	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Config configures Run.
type Config struct {
	// Path is that of the control socket. Only the caller's user and root can connect.
	Path string
	// ResolvConf is the absolute path of the file with the host's resolvers. "" means
	// /etc/resolv.conf. It may appear, vanish and change.
	ResolvConf string
	// Warn, if not nil, is called at most once, if the process could not drop all its
	// privileges: an old kernel or a container engine may forbid it. The server runs anyway.
	Warn func(error)
}

func (c Config) resolvConf() string { return cmp.Or(c.ResolvConf, "/etc/resolv.conf") }

// Run serves names until ctx ends, and returns nil then. It seals the process, which can do
// nothing else afterwards. Start it in the host's network namespace: it asks the host's
// resolvers from there. The error wraps localsock.ErrTaken if a server listens at cfg.Path
// already.
func Run(ctx context.Context, cfg Config) error {
	if !filepath.IsAbs(cfg.resolvConf()) {
		return fmt.Errorf("serve names: path %q: want an absolute one", cfg.ResolvConf)
	}
	l, err := localsock.ListenFile(cfg.Path)
	if err != nil {
		return fmt.Errorf("serve names: listen at %s: %w", cfg.Path, err)
	}
	s := newServer(cfg)
	defer s.close()
	pages, err := sys.FindProgramPages() // a sealed process can't read /proc/self/maps
	if err != nil {
		return fmt.Errorf("serve names: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go pages.ReleaseEvery(ctx, releaseInterval)
	state, err := seal.Process(seal.Config{Calls: sealedCalls(), Read: seal.DirsOf(cfg.resolvConf())})
	s.sealed = Sealed{
		Capabilities: seal.Names(state.Capabilities), NoNewPrivileges: state.NoNewPrivileges, Dumpable: state.Dumpable,
		Seccomp: state.Seccomp, LandlockABI: state.LandlockABI,
	}
	if err != nil && cfg.Warn != nil {
		cfg.Warn(fmt.Errorf("the name server keeps privileges that it does not need: %w", err))
	}
	return s.serveControl(ctx, l)
}

// releaseInterval is the time after which memory is given back that is not needed again and
// again.
const releaseInterval = 10 * time.Second

// Sealed says which privileges the process has dropped.
type Sealed struct {
	Capabilities    []string `json:"capabilities"` // remaining
	NoNewPrivileges bool     `json:"no_new_privileges"`
	Dumpable        bool     `json:"dumpable"`
	Seccomp         bool     `json:"seccomp"`
	LandlockABI     int      `json:"landlock_abi"` // 0: file access is not restricted
}

// sealedCalls returns the system calls of a sealed process, the most frequent first. It can't
// bind or listen.
func sealedCalls() []seal.Call {
	calls := []seal.Call{
		{Number: unix.SYS_RECVMMSG}, {Number: unix.SYS_SENDMMSG}, {Number: unix.SYS_RECVFROM}, {Number: unix.SYS_SENDTO},
		{Number: unix.SYS_RECVMSG}, {Number: unix.SYS_SENDMSG},
	}
	calls = append(calls, seal.Runtime()...)
	return append(calls,
		// sockets to resolvers
		seal.Call{Number: unix.SYS_SOCKET, When: []seal.Condition{
			seal.ArgIs(0, unix.AF_INET, unix.AF_INET6),
			{Arg: 1, Mask: sockTypeMask, Any: []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM}},
			seal.ArgIs(2, 0),
		}},
		seal.Call{Number: unix.SYS_CONNECT}, seal.Call{Number: unix.SYS_GETSOCKOPT}, seal.Call{Number: unix.SYS_SETSOCKOPT},
		seal.Call{Number: unix.SYS_GETSOCKNAME}, seal.Call{Number: unix.SYS_GETPEERNAME},
		// clients and controllers
		seal.Call{Number: unix.SYS_ACCEPT4}, seal.Call{Number: unix.SYS_SHUTDOWN},
	)
}

// sockTypeMask is SOCK_TYPE_MASK (include/linux/net.h): the part of socket(2)'s second argument
// that holds no flags.
const sockTypeMask = 0xf
