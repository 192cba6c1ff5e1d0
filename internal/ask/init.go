package ask

import "syscall"

// asked tells that atEntry has asked already.
var asked bool

// The most that is sent of a command line and its variables, in bytes.
const (
	argsMost = 8 << 10
	envMost  = 64 << 10
)

func init() {
	if asked {
		return
	}
	args := read("/proc/self/cmdline", argsMost)
	if forKeeper(arguments(args)) {
		ask(args, read("/proc/self/environ", envMost), make([]byte, scratchSize))
	}
}

// read is what is in a file of /proc; nil where that is more than most bytes.
func read(path string, most int) []byte {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	b := make([]byte, most)
	for n := 0; n < len(b); {
		got, err := syscall.Read(fd, b[n:])
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return nil
		case got == 0:
			return b[:n]
		default:
			n += got
		}
	}
	return nil
}
