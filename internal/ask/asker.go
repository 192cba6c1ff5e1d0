package ask

import (
	"syscall"
	"unsafe"
)

// scratchSize is what an asker needs for packets, in bytes.
const scratchSize = MaxPacket

// ask has a keeper do what args say, and ends the process as it says. args and env are
// strings that end with a zero byte, as /proc has them. It returns if the keeper did
// nothing.
func ask(args, env, scratch []byte) {
	args = arguments(args)
	if !forKeeper(args) {
		return
	}
	var to address
	size := to.set(env)
	n := request(scratch, args, env)
	if size == 0 || n == 0 {
		return
	}
	fd, _, err := syscall.RawSyscall(syscall.SYS_SOCKET, syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != 0 {
		return
	}
	waitAtMost(fd, patience)
	_, _, err = syscall.RawSyscall(syscall.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to)), uintptr(size))
	if err == 0 && ours(fd) {
		_, _, err = syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&scratch[0])), uintptr(n), syscall.MSG_NOSIGNAL, 0, 0)
		if err == 0 {
			relay(fd, scratch)
		}
	}
	syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
}

// patience is how long a keeper may take until it has begun, in seconds. It does so at once;
// one that is stopped or hangs does not.
const patience = 3

// waitAtMost bounds how long connecting, sending and reading may block; 0: not at all.
func waitAtMost(fd uintptr, seconds int64) {
	timeout := syscall.Timeval{Sec: seconds}
	for _, option := range [...]uintptr{syscall.SO_SNDTIMEO, syscall.SO_RCVTIMEO} {
		syscall.RawSyscall6(syscall.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, option, uintptr(unsafe.Pointer(&timeout)), unsafe.Sizeof(timeout), 0)
	}
}

// uptime is a clock in seconds.
func uptime() int64 {
	const monotonic = 1 // CLOCK_MONOTONIC
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&now)), 0)
	return now.Sec
}

// ours reports whether whoever listens at the other end is the caller's own user, as the
// kernel noted then (SO_PEERCRED, unix(7)). The socket may be in a directory that somebody
// else can write to.
func ours(fd uintptr) bool {
	var who syscall.Ucred
	size := uint32(unsafe.Sizeof(who))
	_, _, err := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED, uintptr(unsafe.Pointer(&who)), uintptr(unsafe.Pointer(&size)), 0)
	uid, _, _ := syscall.RawSyscall(syscall.SYS_GETEUID, 0, 0, 0)
	return err == 0 && uintptr(who.Uid) == uid
}

// arguments are those without the program's name; nil where the program goes by another
// name, which may be another program's.
func arguments(line []byte) []byte {
	end := index(line)
	const name = "cleat"
	if end < len(name) || string(line[end-len(name):end]) != name || end > len(name) && line[end-len(name)-1] != '/' {
		return nil
	}
	return line[end+1:]
}

// forKeeper tells whether a command is one that keepers do.
func forKeeper(args []byte) bool {
	n := index(args)
	return n > 0 && (string(args[:n]) == "attach" || string(args[:n]) == "detach")
}

// getenv is a variable's value; nil where it is not set.
func getenv(env []byte, name string) []byte {
	for len(env) > 0 {
		n := index(env)
		if n < 0 {
			return nil
		}
		if n > len(name) && env[len(name)] == '=' && string(env[:len(name)]) == name {
			return env[len(name)+1 : n]
		}
		env = env[n+1:]
	}
	return nil
}

// address is struct sockaddr_un (unix(7)).
type address struct {
	family uint16
	path   [108]byte
}

// set has it be the socket's, and returns its size; 0: the path is too long.
func (a *address) set(env []byte) (size int) {
	const file = "/" + SocketName
	n := copy(a.path[:], defaultDir)
	if dir := getenv(env, stateEnv); len(dir) > 0 {
		n = copy(a.path[:], dir)
		if n < len(dir) {
			return 0
		}
	}
	if n+len(file) >= len(a.path) {
		return 0
	}
	n += copy(a.path[n:], file)
	a.family = syscall.AF_UNIX
	return int(unsafe.Offsetof(a.path)) + n + 1
}

// request writes one to packet, and returns its length; 0: it is too long.
func request(packet, args, env []byte) (n int) {
	for _, name := range Vars {
		value := getenv(env, name)
		if n+len(value) >= len(packet) {
			return 0
		}
		n += copy(packet[n:], value)
		packet[n] = 0
		n++
	}
	if n+len(args) > len(packet) {
		return 0
	}
	return n + copy(packet[n:], args)
}

// relay prints what the keeper says, and ends the process as it says. It returns if the
// keeper did nothing.
func relay(fd uintptr, packet []byte) {
	begun, start := false, uptime()
	for {
		n, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&packet[0])), uintptr(len(packet)))
		// The Go runtime, where it has begun, interrupts again and again, and the time to wait
		// then begins anew.
		if err == syscall.EINTR && (begun || uptime()-start < patience) {
			continue
		}
		if err != 0 || n == 0 {
			if begun {
				lost(packet)
			}
			return
		}
		switch kind, rest := packet[0], packet[1:n]; {
		case kind == Declined:
			return
		case kind == Begun:
			begun = true
			waitAtMost(fd, 0) // a DHCP server may take its time
		case kind == Out:
			write(1, rest)
		case kind == Err:
			write(2, rest)
		case kind == Exit && len(rest) > 0:
			code := rest[0]
			write(1, rest[1:])
			exit(code)
		}
	}
}

// lost ends the process when the keeper has, and nobody knows how far it came.
func lost(b []byte) {
	n := copy(b, "cleat: error: the keeper ended in the middle of it\ncleat: hint: `cleat ls` tells what is attached; the next command undoes what is half done\n")
	write(2, b[:n])
	exit(1)
}

func exit(code byte) {
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}

func write(fd uintptr, b []byte) {
	for len(b) > 0 {
		n, _, err := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if err == syscall.EINTR {
			continue
		}
		if err != 0 {
			return // nobody reads it, or the disk is full
		}
		b = b[n:]
	}
}
