// Package ask has a keeper that runs do what a command line says, before the rest of
// this program has begun.
//
// # Theory of operation
//
// Half of the time that attaching a container takes a program goes by until its main
// function runs: a few hundred packages initialise what they may need. A keeper
// (package keep) has all that behind it. So where one runs, the command line is sent
// there, what it says is printed, and the process ends with the code that it gives.
//
// This is done while packages are initialised, as early as can be: packages that need
// no other are initialised in the order of their paths, each as soon as those that it
// needs are (the Go specification, Package initialization; the order of paths is Go
// 1.21's). Package syscall is all that this one may need, and it must stay so.
//
// Whatever does not fit, nobody there, a keeper that declines, has the program go on
// as if it had not asked. That is not so once the keeper has begun: then its end is an
// error, as nobody knows how far it came.
//
// The socket is a file that only the owner of the state directory may connect to. The
// keeper looks who asks, and in which namespaces.
//
// Sources: unix(7) (SOCK_SEQPACKET), proc_pid_cmdline(5).
package ask

import "syscall"

// SocketName is the file's name in the state directory.
const SocketName = "keeper.socket"

// The state directory (package attach).
const (
	stateEnv   = "CLEAT_STATE_DIR"
	defaultDir = "/var/lib/cleat"
)

// What a keeper's packets begin with; the rest is said beside it.
const (
	Declined = 'n' // the command is the asker's to do: nothing was changed
	Begun    = 'y'
	Out      = 'o' // then text for standard output
	Err      = 'e' // then text for standard error
	Exit     = 'x' // then one byte, the exit code
)

// MaxPacket is how long packets are at most, in bytes.
const MaxPacket = 32 << 10

// Vars are the environment variables on which it depends what a command line means.
var Vars = [...]string{"HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST", "OVS_RUNDIR", "OVS_PKGDATADIR"}

// OVSVars are those of them that say where Open vSwitch is, which no command is told: they
// must be the keeper's.
var OVSVars = Vars[6:]

// A request is one packet of strings, each ended by a zero byte: the values of Vars,
// then the arguments, the first of which is the command.

// Request is a command line and where it was typed.
type Request struct {
	Args []string
	Env  map[string]string // of Vars; without those that are not set, or empty
}

// Decode takes a packet apart; false: it is none.
func Decode(packet []byte) (Request, bool) {
	var all []string
	for len(packet) > 0 {
		n := index(packet)
		if n < 0 {
			return Request{}, false
		}
		all = append(all, string(packet[:n]))
		packet = packet[n+1:]
	}
	if len(all) <= len(Vars) {
		return Request{}, false
	}
	r := Request{Args: all[len(Vars):], Env: map[string]string{}}
	for i, name := range Vars {
		if all[i] != "" {
			r.Env[name] = all[i]
		}
	}
	return r, true
}

// index is where the first zero byte is; -1: there is none.
func index(b []byte) int {
	for i, c := range b {
		if c == 0 {
			return i
		}
	}
	return -1
}

func init() {
	var line [8 << 10]byte
	args := arguments(line[:])
	if !forKeeper(args) {
		return
	}
	socket := socketPath()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	// A path that is too long is an error, too.
	if syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}) == nil && syscall.Sendto(fd, request(args), syscall.MSG_NOSIGNAL, nil) == nil {
		relay(fd)
	}
	syscall.Close(fd)
}

// arguments are this process's, each ended by a zero byte, without the program's name;
// nil where they don't fit, or the program goes by another name, which may be another
// program's.
func arguments(b []byte) []byte {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	n, err := syscall.Read(fd, b)
	syscall.Close(fd)
	if err != nil || n == len(b) {
		return nil
	}
	end := index(b[:n])
	const name = "cleat"
	if end < len(name) || string(b[end-len(name):end]) != name || end > len(name) && b[end-len(name)-1] != '/' {
		return nil
	}
	return b[end+1 : n]
}

// forKeeper tells whether a command is one that keepers do.
func forKeeper(args []byte) bool {
	n := index(args)
	return n > 0 && (string(args[:n]) == "attach" || string(args[:n]) == "detach")
}

func socketPath() string {
	dir, _ := syscall.Getenv(stateEnv)
	if dir == "" {
		dir = defaultDir
	}
	return dir + "/" + SocketName
}

func request(args []byte) []byte {
	var packet []byte
	for _, name := range Vars {
		value, _ := syscall.Getenv(name)
		packet = append(append(packet, value...), 0)
	}
	return append(packet, args...)
}

// relay prints what the keeper says, and ends the process as it says. It returns if the
// keeper did nothing.
func relay(fd int) {
	begun := false
	for b := make([]byte, MaxPacket); ; {
		n, err := syscall.Read(fd, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n == 0 {
			if !begun {
				return
			}
			write(2, []byte("cleat: error: the keeper ended in the middle of it\ncleat: hint: `cleat ls` tells what is attached; the next command undoes what is half done\n"))
			syscall.Exit(1)
		}
		switch kind, rest := b[0], b[1:n]; {
		case kind == Declined:
			return
		case kind == Begun:
			begun = true
		case kind == Out:
			write(1, rest)
		case kind == Err:
			write(2, rest)
		case kind == Exit && len(rest) == 1:
			syscall.Exit(int(rest[0]))
		}
	}
}

func write(fd int, b []byte) {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		if err != nil && err != syscall.EINTR {
			return // nobody reads it, or the disk is full
		}
		b = b[max(n, 0):]
	}
}
