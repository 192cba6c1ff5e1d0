package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"cleat/internal/sys"
	"cleat/sandbox/supervisor"

	"golang.org/x/sys/unix"
)

// tellRequest asks the inside to write to the memory of a caller, with the
// descriptor of notifications beside it. It goes as its numbers in a row, and What
// behind them.
type tellRequest struct {
	TID    uint32
	Size   uint32
	ID     uint64 // of the notification
	At     uint64
	SizeAt uint64
	What   []byte
}

// tellBytes is how long the numbers are.
const tellBytes = 32

func (r tellRequest) append(b []byte) []byte {
	b = native.AppendUint32(native.AppendUint32(b, r.TID), r.Size)
	b = native.AppendUint64(native.AppendUint64(native.AppendUint64(b, r.ID), r.At), r.SizeAt)
	return append(b, r.What...)
}

func parseTellRequest(b []byte) (r tellRequest, ok bool) {
	if len(b) < tellBytes {
		return r, false
	}
	return tellRequest{native.Uint32(b), native.Uint32(b[4:]), native.Uint64(b[8:]), native.Uint64(b[16:]), native.Uint64(b[24:]), b[tellBytes:]}, true
}

// teller asks the inside of a joined namespace, which writes to programs of that alone.
// The sealed helper may write to nobody's memory.
type teller struct {
	file *os.File
	lost func(error)
	gone bool
}

// tell is the result of writing: EFAULT, or ENOENT where the caller has left.
func (t *teller) tell(what supervisor.Telling) unix.Errno {
	if t.gone {
		return unix.EACCES
	}
	r := tellRequest{uint32(what.TID), what.Size, what.ID, uint64(what.At), uint64(what.SizeAt), what.What}
	fd := int(t.file.Fd())
	var buf [16]byte
	n, err := 0, unix.Sendmsg(fd, r.append(nil), unix.UnixRights(what.Notifications), nil, unix.MSG_NOSIGNAL)
	for again := err == nil; again; again = errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, buf[:])
	}
	errno := uint64(unix.EACCES)
	if err == nil {
		errno, err = strconv.ParseUint(string(buf[:n]), 10, 16)
	}
	if err != nil {
		t.gone = true
		t.lost(err)
		return unix.EACCES
	}
	return unix.Errno(errno)
}

// handOverTeller makes the socket by which serveTells is asked.
func (i *Inside) handOverTeller() error {
	if !i.plan.Bind {
		return nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return &SetupError{Step: "prepare to answer accept", Err: err}
	}
	i.tells = pair[0]
	defer unix.Close(pair[1])
	return i.end.send(report{Stage: stageSockets, Files: []kind{kindTeller}}, pair[1])
}

// serveTells writes to the memory of callers until the host's side is gone.
func (s bindServer) serveTells(end int) error {
	return serveRequests(end, 1, func(text []byte, fds []int) unix.Errno {
		r, ok := parseTellRequest(text)
		if !ok {
			return unix.EACCES
		}
		return s.tell(r, fds[0])
	})
}

// tell writes, once it is certain whose memory it has before it. What a program
// executes meanwhile has another.
func (s bindServer) tell(r tellRequest, notifications int) unix.Errno {
	memory, err := unix.Openat(s.proc, fmt.Sprintf("%d/mem", r.TID), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return unix.EACCES
	}
	defer unix.Close(memory)
	if same, err := s.sameNamespace(int(r.TID), "net"); err != nil || !same {
		return unix.EACCES
	}
	if !sys.NotificationLives(notifications, r.ID) {
		return unix.ENOENT
	}
	size := native.AppendUint32(nil, r.Size)
	for _, w := range []struct {
		what []byte
		at   uint64
	}{{r.What, r.At}, {size, r.SizeAt}} {
		if n, err := unix.Pwrite(memory, w.what, int64(w.at)); err != nil || n < len(w.what) {
			return unix.EFAULT
		}
	}
	return 0
}
