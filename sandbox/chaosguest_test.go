package sandbox_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"cleat/internal/sys/systest"

	"golang.org/x/sys/unix"
)

// chaos is a guest whose processes and threads make random system calls on sockets, from
// a seed, and share and unshare resources. After a number of calls it connects as any
// program does, and prints what it receives.
func chaos(args []string) error {
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	calls, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("calls", 0)
	if err == nil {
		err = unix.Ftruncate(fd, int64(os.Getpagesize()))
	}
	if err != nil {
		return err
	}
	memory, err := systest.NewMemory(os.Getpagesize(), fd)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	r := rand.New(rand.NewPCG(seed, 0))
	count := systest.Counter(memory)
	for count.Load() < calls {
		if err := chaosRound(r, os.NewFile(uintptr(fd), "calls"), count, args[2]); err != nil {
			return err
		}
	}
	output, err := ask("tcp", args[2])
	if err != nil {
		return err
	}
	fmt.Println(output)
	return nil
}

// chaosRound runs several processes at once, which make a number of calls each. It kills
// those that take too long.
func chaosRound(r *rand.Rand, memory *os.File, count *atomic.Uint64, server string) error {
	const calls, atMost = 8000, 2 * time.Second
	processes, threads := 4, 6
	if r.IntN(3) == 0 { // undisturbed by other processes
		processes, threads = 1, racingThreads
	}
	var all []*exec.Cmd
	for range processes {
		cmd := exec.Command("/proc/self/exe", "guest", "chaos-worker", fmt.Sprint(r.Uint64()), fmt.Sprint(calls/processes), server, fmt.Sprint(threads))
		cmd.Env = []string{"GOMAXPROCS=4", "GOTRACEBACK=none"}
		cmd.ExtraFiles = []*os.File{memory}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		switch r.IntN(8) {
		case 0:
			cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNET
		case 1:
			cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		all = append(all, cmd)
	}
	// Their children may hold memory that the supervisor waits for, and so keep everybody
	// from being served.
	defer func() {
		for _, cmd := range all {
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
	}()
	before := count.Load()
	done := make(chan struct{})
	go func() {
		for _, cmd := range all {
			_ = cmd.Wait() // it may have been killed, or have killed itself
		}
		close(done)
	}()
	if r.IntN(4) == 0 { // kill one process while it is making calls
		for count.Load() < before+uint64(r.IntN(calls/2)) {
			select {
			case <-done:
				return nil
			case <-time.After(time.Millisecond):
			}
		}
		_ = all[0].Process.Kill()
	}
	select {
	case <-done:
	case <-time.After(atMost):
		for _, cmd := range all {
			_ = cmd.Process.Kill()
		}
		<-done
	}
	return nil
}

// slots is how many descriptors the threads of a worker use.
const slots = 48

// worker is a process that makes random calls.
type worker struct {
	count     *atomic.Uint64
	server    netip.AddrPort
	pids      [2]uintptr // its own and its parent's
	fds       [slots]atomic.Int32
	addresses systest.Memory // shared by all threads
	fault     *systest.Userfault
	threads   []atomic.Int32 // thread ids
	plain     int            // Unix socket
	host      int            // socket of the host, connected at first
	left      atomic.Int64   // calls left to make
}

const addressSize = 32

// racingThreads is how many threads a worker has that only races for a descriptor.
const racingThreads = 2

// chaosWorker makes random calls on several threads.
func chaosWorker(args []string) error {
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	calls, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	memory, err := systest.NewMemory(os.Getpagesize(), 3)
	if err != nil {
		return err
	}
	w := &worker{count: systest.Counter(memory), server: netip.MustParseAddrPort(args[2]), pids: [2]uintptr{uintptr(os.Getpid()), uintptr(os.Getppid())}}
	if w.addresses, err = systest.NewMemory(os.Getpagesize(), -1); err != nil {
		return err
	}
	threads, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	w.threads = make([]atomic.Int32, threads)
	w.left.Store(calls)
	for i := range w.fds {
		w.fds[i].Store(-1)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR1)
	_ = systest.InterruptCalls(unix.SIGUSR1)
	if threads != racingThreads && seed%4 == 0 { // otherwise its threads would mostly wait
		if w.fault, err = systest.NewUserfault(); err == nil {
			go w.resolveFaults()
		}
	}
	if err := w.openVictims(); err != nil {
		return err
	}
	done := make(chan struct{})
	for i := range threads {
		go func() {
			runtime.LockOSThread()
			w.threads[i].Store(int32(unix.Gettid()))
			t := &chaosThread{worker: w, r: rand.New(rand.NewPCG(seed, uint64(i)))}
			for w.left.Add(-1) >= 0 {
				switch {
				case threads != racingThreads:
					t.step()
				case i == 0:
					t.swap()
				default:
					t.useVictim()
				}
				w.count.Add(1)
			}
			done <- struct{}{}
		}()
	}
	for range threads {
		<-done
	}
	if w.fault != nil {
		unix.Close(w.fault.Faults())
	}
	os.Exit(0) // regardless of what its descriptors are
	return nil
}

// victim is a descriptor number that alternates between two sockets. Replacing them by
// dup3(2) does not notify the supervisor.
const victim = 0

func (w *worker) openVictims() (err error) {
	if w.plain, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); err != nil {
		return err
	}
	if w.host, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err != nil {
		return err
	}
	_ = unix.Connect(w.host, &unix.SockaddrInet4{Addr: w.server.Addr().As4(), Port: int(w.server.Port())}) // fails if the worker is in a namespace of its own
	return nil
}

// swap replaces one socket by the other, so that a call on one may be carried out on the
// other.
func (t *chaosThread) swap() {
	spin := func(n int) {
		for range n {
			t.left.Load()
		}
	}
	_ = unix.Dup3(t.plain, victim, 0)
	spin(1 << (8 + t.r.IntN(8))) // about as long as the supervisor takes to inspect the socket
	_ = unix.Dup3(t.host, victim, 0)
	spin(1 << (8 + t.r.IntN(6)))
}

// useVictim makes calls on the victim. The address is none, a port of the host, or a
// forbidden address: each call could enable the next.
func (t *chaosThread) useVictim() {
	at := t.addresses.Bytes[1024:]
	native := binary.NativeEndian
	clear(at[:addressSize])
	switch t.r.IntN(4) {
	case 0: // disconnects
	case 1:
		native.PutUint16(at, unix.AF_UNIX)
	default:
		native.PutUint16(at, unix.AF_INET)
		binary.BigEndian.PutUint16(at[2:], tripwirePort)
		copy(at[4:], []byte{127, 0, 0, 1})
	}
	nr := pick[uintptr](t.r, unix.SYS_CONNECT, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN)
	systest.Call(nr, victim, t.addresses.Address+1024, unix.SizeofSockaddrInet4)
}

// resolveFaults resolves page faults after a while, and makes the memory fault again.
func (w *worker) resolveFaults() {
	const aWhile = time.Millisecond
	for w.fault.Wait() == nil {
		time.Sleep(aWhile) // the delay is the load, not a wait for a condition
		_ = w.fault.Resolve()
		time.Sleep(aWhile) // the threads that faulted have read it by then
		_ = w.fault.Rearm()
	}
}

// chaosThread is a thread of a worker.
type chaosThread struct {
	*worker
	r *rand.Rand
}

// slot returns a random slot for a descriptor, and fd the descriptor in one.
func (t *chaosThread) slot() *atomic.Int32 { return &t.fds[t.r.IntN(slots)] }
func (t *chaosThread) fd() uintptr         { return uintptr(t.slot().Load()) }

func (t *chaosThread) keep(fd uintptr, errno unix.Errno) {
	if errno == 0 && int32(fd) > 3 {
		if old := t.slot().Swap(int32(fd)); old > 3 && t.r.IntN(2) == 0 {
			systest.Call(unix.SYS_CLOSE, uintptr(old))
		}
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// step makes a random call.
func (t *chaosThread) step() {
	r := t.r
	call := func(nr uintptr, args ...uintptr) (uintptr, unix.Errno) { return systest.Call(nr, args...) }
	switch r.IntN(40) {
	default: // the call under test
		call(unix.SYS_CONNECT, t.fd(), t.address(), t.size())
	case 0, 1, 2, 3, 4, 5:
		family := pick[uintptr](r, unix.AF_INET, unix.AF_INET, unix.AF_INET, unix.AF_INET, unix.AF_INET, unix.AF_INET6, unix.AF_INET6, unix.AF_UNIX, unix.AF_NETLINK, unix.AF_VSOCK)
		kind := pick[uintptr](r, unix.SOCK_STREAM, unix.SOCK_STREAM, unix.SOCK_STREAM, unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW)
		flags := pick[uintptr](r, 0, unix.SOCK_NONBLOCK, unix.SOCK_NONBLOCK, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		t.keep(call(unix.SYS_SOCKET, family, kind|flags, pick[uintptr](r, 0, 0, 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_MPTCP)))
	case 6, 7, 8:
		call(unix.SYS_BIND, t.fd(), t.address(), t.size())
	case 9, 10:
		call(unix.SYS_LISTEN, t.fd(), uintptr(r.IntN(3)))
	case 11:
		fd := t.fd()
		systest.Call(unix.SYS_FCNTL, fd, unix.F_SETFL, unix.O_NONBLOCK) // a blocking accept might never return
		t.keep(call(unix.SYS_ACCEPT4, fd, 0, 0, unix.SOCK_NONBLOCK))
	case 12, 13:
		flags := unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL | pick(r, 0, 0, unix.MSG_FASTOPEN, unix.MSG_OOB, unix.MSG_MORE)
		call(unix.SYS_SENDTO, t.fd(), t.payload(), uintptr(r.IntN(addressSize)), uintptr(flags), pick(r, 0, t.address()), t.size())
	case 14:
		call(unix.SYS_RECVFROM, t.fd(), t.addresses.Address, addressSize, unix.MSG_DONTWAIT, 0, 0)
	case 15, 16, 17:
		t.option()
	case 18:
		call(unix.SYS_SHUTDOWN, t.fd(), uintptr(r.IntN(3)))
	case 19:
		t.keep(call(unix.SYS_DUP, t.fd()))
	case 20, 21, 22:
		if to := t.fd(); int32(to) > 3 {
			call(unix.SYS_DUP3, t.fd(), to, pick[uintptr](r, 0, unix.O_CLOEXEC))
		}
	case 23:
		t.keep(call(unix.SYS_FCNTL, t.fd(), pick[uintptr](r, unix.F_DUPFD, unix.F_DUPFD_CLOEXEC), 0))
	case 24:
		call(unix.SYS_FCNTL, t.fd(), unix.F_SETFL, pick[uintptr](r, 0, unix.O_NONBLOCK, unix.O_ASYNC))
	case 25:
		if fd := t.slot().Swap(-1); fd > 3 {
			call(unix.SYS_CLOSE, uintptr(fd))
		}
	case 26:
		t.epoll()
	case 27:
		t.keep(call(unix.SYS_IO_URING_SETUP, 4, t.addresses.Address))
	case 28:
		t.takeByPidfd()
	case 29:
		t.passByMessage()
	case 30:
		call(unix.SYS_UNSHARE, pick[uintptr](r, unix.CLONE_FILES, unix.CLONE_FS, unix.CLONE_SYSVSEM))
	case 31:
		t.fork()
	case 32:
		call(unix.SYS_TGKILL, t.pids[0], uintptr(t.threads[r.IntN(len(t.threads))].Load()), uintptr(unix.SIGUSR1))
	}
}

// payload returns a pointer to bytes to send, rarely in memory that faults.
func (t *chaosThread) payload() uintptr {
	if t.fault != nil && t.r.IntN(256) == 0 {
		return t.fault.Address
	}
	return t.addresses.Address
}

// address returns a pointer to a socket address: an old or a new random one, memory that
// faults, or an invalid pointer.
func (t *chaosThread) address() uintptr {
	const addresses = 16
	at := t.r.IntN(addresses) * addressSize
	if t.r.IntN(3) > 0 {
		copy(t.addresses.Bytes[at:], t.randomAddress())
	}
	switch t.r.IntN(256) {
	case 0:
		return 1
	case 1:
		if t.fault != nil {
			return t.fault.Address
		}
	case 2:
		return t.addresses.Address + uintptr(len(t.addresses.Bytes)) - 8
	}
	return t.addresses.Address + uintptr(at)
}

// size returns the length of an address, which is rarely wrong.
func (t *chaosThread) size() uintptr {
	return pick[uintptr](t.r, unix.SizeofSockaddrInet4, unix.SizeofSockaddrInet6, unix.SizeofSockaddrInet6, unix.SizeofSockaddrInet6, uintptr(t.r.IntN(140)))
}

// randomAddress returns a socket address, most often a forbidden one.
func (t *chaosThread) randomAddress() []byte {
	b := make([]byte, addressSize)
	native := binary.NativeEndian
	to := netip.AddrPortFrom(netip.MustParseAddr(pick(t.r, forbiddenAddresses...)), tripwirePort)
	switch t.r.IntN(16) {
	case 0, 1, 2, 3, 4, 5, 6:
		to = t.server
	case 7, 8: // where the guest may listen, and ports that it chooses
		to = netip.AddrPortFrom(netip.MustParseAddr(pick(t.r, "0.0.0.0", "::", "127.0.0.1", "10.0.2.100", "::1")), pick[uint16](t.r, 0, 0, tripwirePort, tripwirePort+1, 9000))
	case 9, 10:
		native.PutUint16(b, pick[uint16](t.r, unix.AF_UNSPEC, unix.AF_UNSPEC, unix.AF_UNIX, unix.AF_NETLINK, 255))
		copy(b[2:], pick(t.r, "\x00chaos", "/dev/log", ""))
		return b
	case 11:
		if to.Addr().Is4() {
			to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())
		}
	}
	if a := to.Addr(); a.Is4() {
		native.PutUint16(b, unix.AF_INET)
		copy(b[4:], a.AsSlice())
	} else {
		native.PutUint16(b, unix.AF_INET6)
		copy(b[8:], a.AsSlice())
	}
	binary.BigEndian.PutUint16(b[2:], to.Port())
	return b
}

// option sets a random option, or one that could lead out of the namespace.
func (t *chaosThread) option() {
	type option struct{ level, name uintptr }
	o := pick(t.r,
		option{unix.IPPROTO_IP, localPortRange}, option{unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT}, option{unix.IPPROTO_TCP, unix.TCP_ULP},
		option{unix.SOL_SOCKET, unix.SO_MARK}, option{unix.SOL_SOCKET, unix.SO_BINDTODEVICE}, option{unix.SOL_SOCKET, unix.SO_REUSEPORT},
		option{unix.SOL_SOCKET, unix.SO_REUSEADDR}, option{unix.SOL_SOCKET, unix.SO_SNDTIMEO}, option{unix.IPPROTO_IP, unix.IP_TRANSPARENT},
		option{unix.IPPROTO_IP, unix.IP_OPTIONS}, option{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}, option{unix.IPPROTO_IPV6, unix.IPV6_ADDRFORM},
		option{unix.IPPROTO_TCP, unix.TCP_REPAIR}, option{unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT},
		option{uintptr(t.r.IntN(50)), uintptr(t.r.IntN(80))},
	)
	value := t.addresses.Address + 512
	copy(t.addresses.Bytes[512:], pick(t.r, "smc\x00", "tls\x00", "lo\x00\x00", "\x01\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00\x10\x27\x00\x00\x00\x00\x00\x00"))
	systest.Call(unix.SYS_SETSOCKOPT, t.fd(), o.level, o.name, value, pick[uintptr](t.r, 4, 4, 16, uintptr(t.r.IntN(20))))
}

func (t *chaosThread) epoll() {
	if t.r.IntN(2) == 0 {
		t.keep(systest.Call(unix.SYS_EPOLL_CREATE1, 0))
		return
	}
	systest.Call(unix.SYS_EPOLL_CTL, t.fd(), pick[uintptr](t.r, unix.EPOLL_CTL_ADD, unix.EPOLL_CTL_DEL), t.fd(), t.addresses.Address)
}

// takeByPidfd takes a descriptor of its own or another process.
func (t *chaosThread) takeByPidfd() {
	pidfd, errno := systest.Call(unix.SYS_PIDFD_OPEN, pick(t.r, t.pids[0], t.pids[1], t.pids[0]+1), 0)
	if errno != 0 {
		return
	}
	t.keep(systest.Call(unix.SYS_PIDFD_GETFD, pidfd, t.fd(), 0))
	systest.Call(unix.SYS_CLOSE, pidfd)
}

// passByMessage sends a descriptor to itself.
func (t *chaosThread) passByMessage() {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	oob := make([]byte, unix.CmsgSpace(4))
	if unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(int32(t.fd()))), nil, 0) == nil {
		if _, n, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1), oob, 0); err == nil {
			if messages, err := unix.ParseSocketControlMessage(oob[:n]); err == nil && len(messages) == 1 {
				if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
					t.keep(uintptr(fds[0]), 0)
				}
			}
		}
	}
	unix.Close(pair[0])
	unix.Close(pair[1])
}

// fork creates a process that shares resources with this one and makes calls of its own.
func (t *chaosThread) fork() {
	flags := pick[uintptr](t.r, 0, unix.CLONE_FILES, unix.CLONE_FS, unix.CLONE_FILES|unix.CLONE_FS, unix.CLONE_NEWUSER|unix.CLONE_NEWNET, unix.CLONE_NEWUSER|unix.CLONE_NEWPID)
	var steps []systest.Step
	if t.fault != nil && flags&unix.CLONE_FILES == 0 { // nobody would resolve its faults
		steps = append(steps, systest.Step{Nr: unix.SYS_CLOSE, Args: [6]uintptr{uintptr(t.fault.Faults())}})
	}
	for range 1 + t.r.IntN(5) {
		steps = append(steps, pick(t.r,
			systest.Step{Nr: unix.SYS_CONNECT, Args: [6]uintptr{t.fd(), t.address(), t.size()}},
			systest.Step{Nr: unix.SYS_BIND, Args: [6]uintptr{t.fd(), t.address(), t.size()}},
			systest.Step{Nr: unix.SYS_LISTEN, Args: [6]uintptr{t.fd(), 1}},
			systest.Step{Nr: unix.SYS_DUP3, Args: [6]uintptr{t.fd(), uintptr(max(4, int32(t.fd()))), 0}},
			systest.Step{Nr: unix.SYS_UNSHARE, Args: [6]uintptr{pick[uintptr](t.r, unix.CLONE_FILES, unix.CLONE_NEWUSER|unix.CLONE_NEWNET, unix.CLONE_FS)}},
			systest.Step{Nr: unix.SYS_CLOSE, Args: [6]uintptr{uintptr(max(4, int32(t.fd())))}},
		))
	}
	if _, errno := systest.Fork(flags, steps); errno == 0 {
		t.count.Add(uint64(len(steps)))
	}
	var status unix.WaitStatus
	for { // reap children
		if pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil); pid <= 0 || err != nil {
			return
		}
	}
}
