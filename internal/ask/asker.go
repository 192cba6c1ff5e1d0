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
	_, _, err = syscall.RawSyscall(syscall.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to)), uintptr(size))
	if err == 0 {
		_, _, err = syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&scratch[0])), uintptr(n), syscall.MSG_NOSIGNAL, 0, 0)
	}
	if err == 0 {
		relay(fd, scratch)
	}
	syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
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
	begun := false
	for {
		n, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&packet[0])), uintptr(len(packet)))
		if err == syscall.EINTR {
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
