package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"cleat/bench/remote"
	"cleat/lab"
)

// program is a process or a stream of a Unix socket. Its input waits in a queue until it
// has started.
type program struct {
	agent *agent
	id    uint64
	ctx   context.Context
	kill  context.CancelFunc

	mu    sync.Mutex
	more  *sync.Cond
	input [][]byte // yet to be written
	ended bool     // no input follows
}

func newProgram(a *agent, id uint64) *program {
	p := &program{agent: a, id: id}
	p.more = sync.NewCond(&p.mu)
	p.ctx, p.kill = context.WithCancel(a.ctx)
	context.AfterFunc(p.ctx, p.endInput)
	return p
}

// toProgram passes a message to its program. The program may have ended meanwhile.
func (a *agent) toProgram(m remote.Message) {
	a.mu.Lock()
	p := a.programs[m.ID]
	a.mu.Unlock()
	switch {
	case p == nil:
	case m.Op == remote.OpKill:
		p.kill()
	case len(m.Data) == 0:
		p.endInput()
	default:
		p.mu.Lock()
		p.input = append(p.input, m.Data)
		p.mu.Unlock()
		p.more.Signal()
	}
}

func (p *program) endInput() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.more.Signal()
}

// feed writes the input to w until it ends, and closes w.
func (p *program) feed(w io.Closer, write func([]byte) (int, error)) {
	defer w.Close()
	for {
		p.mu.Lock()
		for len(p.input) == 0 && !p.ended {
			p.more.Wait()
		}
		chunks := p.input
		p.input = nil
		p.mu.Unlock()
		if len(chunks) == 0 {
			return
		}
		for _, c := range chunks {
			if _, err := write(c); err != nil {
				return // the program does not read any more
			}
		}
	}
}

// pass sends what comes from r as messages.
func (p *program) pass(r io.Reader, op remote.Op) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			p.agent.send(remote.Message{ID: p.id, Op: op, Data: buf[:n]})
		}
		if err != nil {
			return
		}
	}
}

// run runs the program that a message asks for, to its end.
func (p *program) run(m remote.Message) {
	defer func() {
		p.kill()
		p.agent.mu.Lock()
		delete(p.agent.programs, p.id)
		p.agent.mu.Unlock()
	}()
	var err error
	switch m.Op {
	case remote.OpStart:
		_, err = with(m, func(s remote.Start) (any, error) { return nil, p.process(s) })
	default:
		_, err = with(m, func(s remote.Socket) (any, error) { return nil, p.stream(s, m.Op == remote.OpAccept) })
	}
	if not := (*notStarted)(nil); errors.As(err, &not) {
		p.agent.reply(p.id, nil, not.err)
		return
	}
	p.agent.send(remote.Message{ID: p.id, Op: remote.OpExit, Error: remote.FailureOf(err)})
}

// notStarted is the error of a program that did not start.
type notStarted struct{ err error }

func (n *notStarted) Error() string { return n.err.Error() }

// process runs a process to its end.
func (p *program) process(s remote.Start) error {
	on, err := p.agent.runner(s.Where)
	if err != nil {
		return &notStarted{err}
	}
	var files [6]*os.File // both ends of the pipes of input, output, errors
	defer func() {
		for _, f := range files {
			f.Close() // harmless for nil and closed files
		}
	}()
	for i := 0; i < len(files); i += 2 {
		if files[i], files[i+1], err = os.Pipe(); err != nil {
			return &notStarted{fmt.Errorf("make a pipe: %w", err)}
		}
	}
	proc, err := on.Start(lab.Command{Args: s.Args, CPU: s.CPU, Stdin: files[0], Stdout: files[3], Stderr: files[5]})
	for _, theirs := range []int{0, 3, 5} {
		files[theirs].Close()
	}
	if err != nil {
		return &notStarted{err}
	}
	defer context.AfterFunc(p.ctx, proc.Kill)()
	p.agent.reply(p.id, nil, nil)
	go p.feed(files[1], files[1].Write)
	var reading sync.WaitGroup
	reading.Go(func() { p.pass(files[2], remote.OpOutput) })
	reading.Go(func() { p.pass(files[4], remote.OpErrors) })
	err = proc.Wait()
	reading.Wait()
	p.endInput()
	return err
}

// stream joins a Unix socket with the other end until either closes it. An accepted one
// is the next connection to a socket that listens until the agent ends.
func (p *program) stream(s remote.Socket, accept bool) error {
	conn, err := p.open(s.Path, accept)
	if err != nil {
		return &notStarted{err}
	}
	defer conn.Close()
	defer context.AfterFunc(p.ctx, func() { conn.Close() })()
	p.agent.reply(p.id, nil, nil)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		p.feed(writeEnd{conn}, conn.Write)
	}()
	p.pass(conn, remote.OpOutput)
	p.endInput()
	<-fed
	return nil
}

// writeEnd closes the direction of a connection in which it is written.
type writeEnd struct{ conn *net.UnixConn }

func (w writeEnd) Close() error { return w.conn.CloseWrite() }

func (p *program) open(path string, accept bool) (*net.UnixConn, error) {
	if !accept {
		c, err := (&net.Dialer{}).DialContext(p.ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
	p.agent.mu.Lock()
	l := p.agent.listeners[path]
	p.agent.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("nothing listens at %s", path)
	}
	// Nobody waits any more: the next client must not be taken for this program's.
	stop := context.AfterFunc(p.ctx, func() { p.agent.closeListener(path) })
	c, err := l.Accept()
	stop()
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// newListener listens at a path until the agent ends, or a program that accepts there is
// killed.
func (a *agent) newListener(path string) error {
	l, err := (&net.ListenConfig{}).Listen(a.ctx, "unix", path)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners[path] = l
	return nil
}

func (a *agent) closeListener(path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l := a.listeners[path]; l != nil {
		l.Close()
		delete(a.listeners, path)
	}
}
