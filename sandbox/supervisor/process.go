package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// process is what is known of the descriptors of a process.
type process struct {
	pid      int
	tasks    int           // that are remembered
	shuffles uint64        // the program's when it was looked at
	looked   time.Time     // zero: what was seen no longer holds
	last     time.Time     // like looked, but never zero again
	took     time.Duration // processor time of the last look
	many     bool          // there were more than fewDescriptors
	epolls   []int
	doubles  map[uint64]bool // inodes of sockets with several descriptors
}

const (
	// settled is how long after a call that changes what a socket is known by it has
	// surely been carried out.
	settled = 50 * time.Millisecond
	// maxDescriptors bounds the descriptors of a process that are looked at, which
	// takes some 3 µs each.
	maxDescriptors = 1 << 14
	// A process with more than fewDescriptors is looked at again only after lookRatio times
	// as long as a look takes, so that it can't keep a processor busy by connecting. Fewer
	// take less time than the rest of a connection.
	fewDescriptors = 256
	lookRatio      = 20
)

// entangled returns why more depends on a socket than its descriptor: a substitute
// would be missed by an epoll instance, or by who has a duplicate. "": nothing
// does.
func (p *program) entangled(c socket) string {
	t, fd, d := c.task, c.theirs, c.about
	own := t.process
	if own.looked.IsZero() || own.shuffles != p.shuffles || own.looked.Before(p.lastShuffle.Add(settled)) || fd <= stdio {
		if p.look(t) != nil {
			return whyUnknown
		}
	}
	if own.doubles[d.inode] {
		if p.look(t) != nil { // it may have been closed since
			return whyUnknown
		}
		if own.doubles[d.inode] {
			return whyDuplicated
		}
	}
	for n := 0; n <= stdio; n++ {
		if n != fd && sys.SameFile(t.tid, fd, n) {
			return whyDuplicated
		}
	}
	in := false
	own.epolls = slices.DeleteFunc(own.epolls, func(epoll int) bool {
		is, errno := sys.InEpoll(t.tid, fd, epoll)
		in = in || is
		if errno == unix.EBADF {
			own.looked = time.Time{} // it was closed: there may be another one by now
		}
		return errno != 0
	})
	if in {
		return whyEpoll
	}
	return ""
}

var errTooOften = errors.New("the process has too many descriptors to look at them again so soon")

// look goes through a process's descriptors, by /proc/PID/fdinfo: the files of
// another user's process that we may look into can be listed there, and not in fd.
func (p *program) look(t *task) error {
	own := t.process
	if own.many && time.Since(own.last) < lookRatio*own.took {
		return errTooOften
	}
	begin := threadTime()
	numbers, err := t.descriptors()
	if err != nil {
		return err
	}
	own.epolls, own.doubles = own.epolls[:0], map[uint64]bool{}
	once := make(map[uint64]bool, len(numbers))
	for _, fd := range numbers {
		d, err := t.describeOnce(fd)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			continue // closed since
		}
		if err != nil {
			return err
		}
		if d.inode == p.s.anonymous {
			own.epolls = append(own.epolls, fd) // or something else of that kind
		} else if once[d.inode] {
			own.doubles[d.inode] = true
		}
		once[d.inode] = true
	}
	own.shuffles, own.looked = p.shuffles, time.Now()
	own.last, own.took, own.many = own.looked, threadTime()-begin, len(numbers) > fewDescriptors
	return nil
}

// threadTime is the processor time that the calling thread has taken. It is the program's
// own (run).
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // never fails
	return time.Duration(t.Nano())
}

// descriptors lists those of a thread.
func (t *task) descriptors() ([]int, error) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fdinfo", t.tid))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxDescriptors + 1)
	if err != nil {
		return nil, err
	}
	if len(names) > maxDescriptors {
		return nil, errTooOften
	}
	numbers := make([]int, len(names))
	for i, name := range names {
		if numbers[i], err = strconv.Atoi(name); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// anonymousInode is that of all epoll instances, and of other files that are
// nowhere.
func anonymousInode() (uint64, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Ino, err
}

// Why a connection takes another tier.
const (
	whyUnknown    = "its descriptors can't be looked at"
	whyDuplicated = "the socket was duplicated"
	whyEpoll      = "the socket waits in an epoll instance already"
	whyBound      = "the socket is bound"
	whyOption     = "the socket has an option that can't be had on the host's"
	whyAsync      = "the socket sends signals"
	whyPolicy     = "the policy does not simply let it through"
	whyInside     = "the destination is inside"
	whyNamespace  = "the socket is of another network namespace"
	whyPrivileged = "the program may configure the host's network"
	whyPorts      = "the host's range of ports has changed, and no longer keeps its sockets from new ones"
	whyHost       = "the host's socket could not be made"
	whyAddress    = "the address is none that leads anywhere"
)
