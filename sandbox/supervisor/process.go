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

// process caches what is known about the descriptors of a process.
type process struct {
	pid     int
	threads int             // in the program's table
	changes uint64          // program.changes at the last scan
	scanned time.Time       // the last scan; zero if its results are stale
	last    time.Time       // the last scan, stale or not
	took    time.Duration   // processor time of the last scan
	many    bool            // it had more than fewDescriptors
	epolls  []int           // descriptors of epoll instances
	doubles map[uint64]bool // inode numbers of sockets with several descriptors
}

const (
	// settleTime is the time after which a continued call has certainly been carried out.
	settleTime = 50 * time.Millisecond
	// maxDescriptors bounds a scan, which takes about 3 µs for each descriptor.
	maxDescriptors = 1 << 14
	// A process with more than fewDescriptors is scanned again only after scanRatio times
	// the duration of a scan, so that it can't keep a processor busy by connecting.
	// Scanning fewer descriptors takes less time than the rest of a connect.
	fewDescriptors = 256
	scanRatio      = 20
)

// shared returns the reason why the program refers to a socket by more than one
// descriptor, and would notice its replacement; "" if it does not.
func (p *program) shared(c socket) string {
	t, fd := c.thread, c.guestFD
	own := t.process
	if own.scanned.IsZero() || own.changes != p.changes || own.scanned.Before(p.lastChange.Add(settleTime)) || fd <= stdio {
		if p.scan(t) != nil {
			return whyUnknown
		}
	}
	if own.doubles[c.info.inode] {
		if p.scan(t) != nil { // the other descriptor may have been closed since
			return whyUnknown
		}
		if own.doubles[c.info.inode] {
			return whyDuplicated
		}
	}
	for n := 0; n <= stdio; n++ {
		if n != fd && sys.SameFile(t.tid, fd, n) {
			return whyDuplicated
		}
	}
	inEpoll := false
	own.epolls = slices.DeleteFunc(own.epolls, func(epoll int) bool {
		in, errno := sys.InEpoll(t.tid, fd, epoll)
		inEpoll = inEpoll || in
		if errno == unix.EBADF {
			own.scanned = time.Time{} // the descriptor was closed: its number may be reused
		}
		return errno != 0
	})
	if inEpoll {
		return whyEpoll
	}
	return ""
}

var errScanLimit = errors.New("too many descriptors to scan")

// scan reads all descriptors of a process in /proc/PID/fdinfo. Unlike fd, that directory
// can be listed for processes of other users that we may inspect.
func (p *program) scan(t *thread) error {
	own := t.process
	if own.many && time.Since(own.last) < scanRatio*own.took {
		return errScanLimit
	}
	begin := threadTime()
	numbers, err := t.descriptors()
	if err != nil {
		return err
	}
	own.epolls, own.doubles = own.epolls[:0], map[uint64]bool{}
	seen := make(map[uint64]bool, len(numbers))
	for _, fd := range numbers {
		d, err := t.describeOnce(fd)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			continue // closed since
		}
		if err != nil {
			return err
		}
		if d.inode == p.s.anonInode {
			own.epolls = append(own.epolls, fd) // or another file without an inode of its own
		} else if seen[d.inode] {
			own.doubles[d.inode] = true
		}
		seen[d.inode] = true
	}
	own.changes, own.scanned = p.changes, time.Now()
	own.last, own.took, own.many = own.scanned, threadTime()-begin, len(numbers) > fewDescriptors
	return nil
}

// threadTime returns the processor time of the calling thread, which is the program's own
// (program.run).
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // never fails
	return time.Duration(t.Nano())
}

func (t *thread) descriptors() ([]int, error) {
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
		return nil, errScanLimit
	}
	numbers := make([]int, len(names))
	for i, name := range names {
		if numbers[i], err = strconv.Atoi(name); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// anonInode returns the inode number that epoll instances share with other anonymous
// files.
func anonInode() (uint64, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Ino, err
}
