package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// startLimit bounds the start of a program on another machine.
const startLimit = 20 * time.Second

// runner starts programs on a machine.
type runner struct {
	node  *Node
	where Where
}

// IsRemote reports whether a Runner is another machine's.
func IsRemote(r lab.Runner) bool {
	_, ok := r.(runner)
	return ok
}

// Start implements lab.Runner. Extra files are not passed.
func (r runner) Start(c lab.Command) (lab.Proc, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), startLimit, fmt.Errorf("it did not start within %s", startLimit))
	defer cancel()
	p, err := r.node.launch(ctx, OpStart, Start{Where: r.where, Args: c.Args, CPU: c.CPU}, c.Stdin, c.Stdout, c.Stderr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	return p, nil
}

// process is a program on another machine.
type process struct {
	node        *Node
	id          uint64
	out, errors *sink
	in          *os.File // nil: no input

	once sync.Once
	done chan struct{}
	err  error
}

// launch asks for a program or a stream, and passes its input and outputs on. The files
// may be nil; the caller may close them at once.
func (n *Node) launch(ctx context.Context, op Op, body any, stdin, stdout, stderr *os.File) (*process, error) {
	p := &process{node: n, id: n.number(), done: make(chan struct{})}
	var files [3]*os.File
	for i, f := range []*os.File{stdin, stdout, stderr} {
		if f == nil {
			continue
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeFiles(files[:]...)
			return nil, fmt.Errorf("duplicate a descriptor: %w", err)
		}
		// f.Fd has made the shared description blocking: a deadline or Close must end reads.
		err = unix.SetNonblock(fd, true)
		files[i] = os.NewFile(uintptr(fd), f.Name())
		if err != nil {
			closeFiles(files[:]...)
			return nil, fmt.Errorf("make a descriptor non-blocking: %w", err)
		}
	}
	p.in, p.out, p.errors = files[0], newSink(files[1]), newSink(files[2])
	n.mu.Lock()
	n.programs[p.id] = p
	n.mu.Unlock()
	if _, err := n.request(ctx, p.id, op, body); err != nil {
		n.mu.Lock()
		delete(n.programs, p.id)
		n.mu.Unlock()
		n.send(Message{ID: p.id, Op: OpKill}) // it may start late
		p.end(err)
		return nil, err
	}
	go p.feed()
	return p, nil
}

func closeFiles(files ...*os.File) {
	for _, f := range files {
		f.Close() // harmless for nil
	}
}

// feed sends the input until it ends, or the program does.
func (p *process) feed() {
	buf := make([]byte, 32<<10)
	for p.in != nil {
		k, err := p.in.Read(buf)
		if k > 0 {
			err = errors.Join(err, p.node.send(Message{ID: p.id, Op: OpInput, Data: buf[:k]}))
		}
		if err != nil {
			break
		}
	}
	select {
	case <-p.done:
	default:
		p.node.send(Message{ID: p.id, Op: OpInput}) // nothing follows
	}
}

// end ends the program's outputs. Only the first call has an effect.
func (p *process) end(err error) {
	p.once.Do(func() {
		closeFiles(p.in)
		go func() { // whoever reads the outputs may be slow
			p.out.close()
			p.errors.close()
			p.err = err
			close(p.done)
		}()
	})
}

// PID implements lab.Proc.
func (p *process) PID() int { return 0 }

// Kill implements lab.Proc. The program ends when its machine has heard of it.
func (p *process) Kill() { go p.node.send(Message{ID: p.id, Op: OpKill}) }

// Wait implements lab.Proc.
func (p *process) Wait() error { <-p.done; return p.err }

// sink writes a program's output to a file, on a goroutine of its own: a slow reader must
// not hold up the connection.
type sink struct {
	file *os.File // nil: discarded

	mu     sync.Mutex
	more   *sync.Cond
	chunks [][]byte
	bytes  int // in chunks
	ended  bool
	done   chan struct{}
}

// maxQueued bounds the output of one program that nobody has read. More is dropped.
const maxQueued = 16 << 20

func newSink(f *os.File) *sink {
	s := &sink{file: f, done: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	go s.write()
	return s
}

func (s *sink) put(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil && s.bytes+len(b) <= maxQueued {
		s.chunks, s.bytes = append(s.chunks, b), s.bytes+len(b)
		s.more.Signal()
	}
}

// close writes what is queued and closes the file.
func (s *sink) close() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.more.Signal()
	<-s.done
}

func (s *sink) write() {
	defer close(s.done)
	defer closeFiles(s.file)
	var err error
	for {
		s.mu.Lock()
		for len(s.chunks) == 0 && !s.ended {
			s.more.Wait()
		}
		chunks := s.chunks
		s.chunks, s.bytes = nil, 0
		s.mu.Unlock()
		if len(chunks) == 0 {
			return
		}
		for _, c := range chunks {
			if err == nil { // a reader that is gone does not end the program
				_, err = s.file.Write(c)
			}
		}
	}
}
