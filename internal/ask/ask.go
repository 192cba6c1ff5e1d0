// Package ask has a keeper that runs do what a command line says, before the rest of
// this program has begun.
//
// # Theory of operation
//
// Half of the time that attaching a container takes a program goes by until its main
// function runs: the runtime starts, and a few hundred packages initialise what they may
// need. A keeper (package keep) has all that behind it. So where one runs, the command
// line is sent there, what it says is printed, and the process ends with the code that
// it gives.
//
// This is done by the process's first instructions, where the linker was told that the
// program begins with them (-E cleat/internal/ask.entry, as `make` does). entry calls
// atEntry as compiled Go calls it, with something for a goroutine whose stack has no
// limit, and goes on to the runtime's own entry. Nothing else of Go's is there yet: what
// runs there allocates nothing on the heap, and neither defers nor panics. Its memory is
// on the stack that the kernel gave.
//
// A program that was linked otherwise, or for another processor than amd64 and arm64,
// asks while packages are initialised: packages that need no other are initialised in
// the order of their paths, each as soon as those that it needs are (the Go
// specification, Package initialization; the order of paths is Go 1.21's). Package
// syscall is all that this one may need, and it must stay so.
//
// Whatever does not fit, nobody there, a keeper that declines, has the program go on
// as if it had not asked. That is not so once the keeper has begun: then its end is an
// error, as nobody knows how far it came.
//
// The socket is a file that only the owner of the state directory may connect to. The
// keeper looks who asks, and in which namespaces. The asker looks whose process listens: it
// believes its own user's alone, and waits no longer than 3 s until that has begun.
//
// Sources: unix(7) (SOCK_SEQPACKET), proc_pid_cmdline(5), the System V ABI's process
// stack, create_elf_tables in fs/binfmt_elf.c, Go's ABIInternal
// (cmd/compile/abi-internal.md).
package ask

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
	Exit     = 'x' // then one byte, the exit code, and text for standard output
)

// MaxPacket is how long packets are at most, in bytes.
const MaxPacket = 32 << 10

// Vars are the environment variables on which it depends what a command line means.
var Vars = [...]string{"HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST", "PATH", "OVS_RUNDIR", "OVS_PKGDATADIR"}

// OVSVars are those of them that say where Open vSwitch is, which no command is told: they
// must be the keeper's.
var OVSVars = Vars[7:]

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
