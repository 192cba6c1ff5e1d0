package traffic

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// mostThreads is the number of streams of one end up to which each has its own thread,
// which is fastest. Of a thousand threads on one processor, each runs every three
// seconds, and the scheduler would decide how much each stream gets. So more streams
// share one thread a processor.
const mostThreads = 16

// receive starts counting what arrives. With few streams it reads size bytes or more at
// once.
func (s *streamSet) receive(size int) error {
	if len(s.socks) <= mostThreads {
		s.start(receiveLoop(size))
		return nil
	}
	return s.share(unix.EPOLLIN, func() turn {
		buf := make([]byte, size)
		return func(fd int) (int, error) {
			n, err := unix.Read(fd, buf)
			if n == 0 && err == nil {
				err = unix.ECONNRESET // the peer has closed
			}
			return n, err
		}
	})
}

// send starts sending, size bytes at a time.
func (s *streamSet) send(size int) error {
	if len(s.socks) <= mostThreads {
		s.start(sendLoop(size))
		return nil
	}
	buf := make([]byte, size)
	fill(buf)
	return s.share(unix.EPOLLOUT, func() turn {
		return func(fd int) (int, error) { return unix.Write(fd, buf) }
	})
}

// turn moves up to one message of one stream without blocking. An error other than EAGAIN
// and EINTR ends the stream.
type turn func(fd int) (int, error)

// share starts one thread a processor and distributes the streams among them. A thread
// serves its ready streams in turn.
func (s *streamSet) share(events uint32, newTurn func() turn) error {
	workers := min(runtime.NumCPU(), len(s.socks))
	polls := make([]int, 0, workers)
	fail := func(err error) error {
		for _, fd := range polls {
			unix.Close(fd)
		}
		return err
	}
	for range workers {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return fail(fmt.Errorf("create epoll instance: %w", err))
		}
		polls = append(polls, fd)
	}
	for i, sock := range s.socks {
		if err := unix.SetNonblock(sock.fd, true); err != nil {
			return fail(fmt.Errorf("set socket nonblocking: %w", err))
		}
		event := unix.EpollEvent{Events: events, Fd: int32(i)}
		if err := unix.EpollCtl(polls[i%workers], unix.EPOLL_CTL_ADD, sock.fd, &event); err != nil {
			return fail(fmt.Errorf("add socket to epoll instance: %w", err))
		}
	}
	for i, fd := range polls {
		streams := (len(s.socks) - i + workers - 1) / workers
		s.wg.Go(func() {
			defer unix.Close(fd)
			s.serve(fd, streams, newTurn())
		})
	}
	go func() { s.wg.Wait(); close(s.idle) }()
	return nil
}

// pollWait is the interval at which a thread checks stop while it waits for its streams,
// in milliseconds. Streams that end wake it.
const pollWait = 100

// serve serves the given number of streams of one epoll instance until all have ended or
// stop is set.
func (s *streamSet) serve(epoll, streams int, take turn) {
	ready := make([]unix.EpollEvent, min(streams, 256))
	var y yielder
	for streams > 0 && !s.stop.Load() {
		n, err := unix.EpollWait(epoll, ready, pollWait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, event := range ready[:max(n, 0)] {
			i := int(event.Fd)
			n, err := take(s.socks[i].fd)
			y.call()
			if n > 0 {
				s.once.Do(func() { close(s.began) })
				s.counts[i].bytes.Add(uint64(n))
				s.came.mark()
			}
			if err != nil && !retry(err) {
				// A socket that has ended would always be ready.
				_ = unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, s.socks[i].fd, nil)
				streams--
			}
		}
	}
}
