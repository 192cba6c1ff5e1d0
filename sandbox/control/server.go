package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"cleat/internal/localsock"
)

const (
	requestBytes = 1 << 20          // a policy of 20,000 rules
	answerBytes  = 96 << 20         // 65,536 flows of at most 1.5 KiB
	idle         = time.Minute      // a client that says nothing for so long is gone
	writeWithin  = 10 * time.Second // a client that does not read is not waited for
	connections  = 8
)

// Descriptors is how many a Server has at most: its listener, its clients, and a socket to ask
// the kernel about them.
const Descriptors = 1 + connections + 1

// ErrTaken says that a helper of this name, or at this path, is running.
var ErrTaken = errors.New("name is taken by a running helper")

// Target is what a Server controls. Its methods are called by several
// goroutines at once. Errors made by BadRequest reach the client as
// KindRequest, others as KindFailed, with the text of a Hint() method if they
// or what they wrap have one.
type Target interface {
	Info() Info
	Flows() ([]Flow, error)
	Stats() Stats
	Forwards() ([]Forward, error)
	// AddForward opens a port and says what it listens on.
	AddForward(Forward) (Forward, error)
	// RemoveForward closes the port again; flows that came in by it live on.
	RemoveForward(Forward) error
	// Policy is the policy in force, as a policy file says it.
	Policy() (string, error)
	// SetPolicy replaces the policy for flows that begin from now on.
	SetPolicy(text string) error
	// Stop ends the helper. It is called after the client has its answer.
	Stop()
}

// Server answers requests. Make it with Listen or ListenPath.
type Server struct {
	l       *net.UnixListener
	witness *witness // for a socket with a path; nil: peers prove where they are by having connected
}

// CheckName says what is wrong with a name that somebody wants to give a
// helper. A name of digits only is left to process ids.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > 64:
		return fmt.Errorf("name %q: want 1 to 64 characters", name)
	case strings.Trim(name, "0123456789") == "":
		return fmt.Errorf("name %q: digits alone are a process id", name)
	}
	for _, c := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", c) {
			return fmt.Errorf("name %q: want letters, digits, dots, dashes and underscores only", name)
		}
	}
	return nil
}

// Listen opens the abstract socket of the helper called name, which is not
// checked, in the caller's network namespace. The error wraps ErrTaken where
// one of this name is running.
func Listen(name string) (*Server, error) {
	l, err := socketKind.Own(name).Listen()
	if err != nil {
		return nil, fmt.Errorf("listen for control as %q: %w", name, ofHelper(err))
	}
	return &Server{l: l}, nil
}

// ListenPath opens a socket at path, for the user alone. A socket that nobody
// listens at any more is replaced; any other file is not, and the error wraps
// ErrTaken or fs.ErrExist. Where the kernel can't tell a peer's network
// namespace (CONFIG_UNIX_DIAG) it wraps errors.ErrUnsupported.
func ListenPath(path string) (*Server, error) {
	l, err := localsock.ListenFile(path)
	if err != nil {
		return nil, fmt.Errorf("listen for control at %s: %w", path, ofHelper(err))
	}
	s := &Server{l: l}
	if err := s.callWitness(); err != nil {
		s.Close()
		return nil, fmt.Errorf("listen for control at %s: %w", path, err)
	}
	return s, nil
}

// ofHelper says of a taken name who has it.
func ofHelper(err error) error {
	if errors.Is(err, localsock.ErrTaken) {
		return ErrTaken
	}
	return err
}

// callWitness makes a witness and has it tell what it must know: that our own
// socket is ours.
func (s *Server) callWitness() error {
	w, err := newWitness()
	if err != nil {
		return fmt.Errorf("ask for network namespaces of sockets: %w", err)
	}
	s.witness = w
	err = localsock.Control(s.l, func(fd int) error {
		inode, err := inodeOf(fd)
		if err == nil {
			_, err = w.find(inode)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("ask for network namespaces of sockets (CONFIG_UNIX_DIAG): %w: %w", errors.ErrUnsupported, err)
	}
	return nil
}

// Close stops listening, and removes the socket where it has a path. A Serve
// that is under way returns.
func (s *Server) Close() error {
	err := s.l.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if s.witness != nil {
		s.witness.close()
	}
	return err
}

// Serve answers until ctx ends or the Server is closed, which is no error. It
// returns when the last connection is closed.
func (s *Server) Serve(ctx context.Context, t Target) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	room := make(chan struct{}, connections)
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := localsock.Accept(ctx, s.l.AcceptUnix)
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if err == nil {
				c.Close()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept control connection: %w", err)
		}
		all.Go(func() {
			defer func() { <-room }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			s.converse(c, t)
		})
	}
}

// converse answers one connection's requests if its peer is admitted.
func (s *Server) converse(c *net.UnixConn, t Target) {
	if err := s.admit(c); err != nil {
		say(c, refusal(&Error{Kind: KindFailed, Message: err.Error()}))
		return
	}
	answerAll(c, t)
}

// say sends an answer. What goes wrong with the connection is the client's to notice.
func say(c net.Conn, a Answer) error {
	c.SetWriteDeadline(time.Now().Add(writeWithin))
	out := json.NewEncoder(c)
	out.SetEscapeHTML(false) // "<" would take six bytes, and the guest chooses names
	return out.Encode(a)
}

// answerAll answers a connection's requests.
func answerAll(c net.Conn, t Target) {
	in := bufio.NewScanner(c)
	in.Buffer(make([]byte, 0, 4096), requestBytes)
	for {
		c.SetReadDeadline(time.Now().Add(idle))
		if !in.Scan() || in.Err() != nil { // the latter: a part of a line, as the deadline passed
			if errors.Is(in.Err(), bufio.ErrTooLong) {
				say(c, refusal(BadRequest("the request is longer than %d bytes", requestBytes)))
			}
			return
		}
		a, last := answer(in.Bytes(), t)
		err := say(c, a)
		if last {
			t.Stop()
			return
		}
		if err != nil {
			return
		}
	}
}

// answer does what one line asks for, and says whether it is to stop.
func answer(line []byte, t Target) (a Answer, stop bool) {
	r, err := parse(line)
	if err != nil {
		return refusal(err), false
	}
	a.Version = Version
	switch r.Do {
	case OpInfo:
		info := t.Info()
		a.Info = &info
	case OpFlows:
		a.Flows, err = t.Flows()
	case OpStats:
		stats := t.Stats()
		a.Stats = &stats
	case OpForwards:
		a.Forwards, err = t.Forwards()
	case OpForwardAdd:
		var f Forward
		f, err = t.AddForward(*r.Forward)
		a.Forwards = []Forward{f}
	case OpForwardRemove:
		err = t.RemoveForward(*r.Forward)
	case OpPolicy:
		var text string
		text, err = t.Policy()
		a.Policy = &text
	case OpPolicySet:
		err = t.SetPolicy(*r.Policy)
	case OpStop:
		return a, true
	}
	if err != nil {
		return refusal(err), false
	}
	return a, false
}

// parse reads a request and checks that it holds what it needs and no more.
func parse(line []byte) (Request, error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(line, &version); err != nil {
		return Request{}, BadRequest("read request: %v", err)
	}
	if version.Version != Version {
		return Request{}, &Error{Kind: KindVersion, Message: fmt.Sprintf("the helper speaks version %d of the control protocol, not %d", Version, version.Version)}
	}
	dec := json.NewDecoder(strings.NewReader(string(line)))
	dec.DisallowUnknownFields()
	var r Request
	if err := dec.Decode(&r); err != nil {
		return r, BadRequest("read request: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return r, BadRequest("read request: more than one object on the line")
	}
	wantForward := r.Do == OpForwardAdd || r.Do == OpForwardRemove
	wantPolicy := r.Do == OpPolicySet
	switch r.Do {
	case OpInfo, OpFlows, OpStats, OpForwards, OpForwardAdd, OpForwardRemove, OpPolicy, OpPolicySet, OpStop:
	default:
		return r, BadRequest("unknown request %q", r.Do)
	}
	if wantForward != (r.Forward != nil) {
		return r, BadRequest("request %q: want forward: %t", r.Do, wantForward)
	}
	if wantPolicy != (r.Policy != nil) {
		return r, BadRequest("request %q: want policy: %t", r.Do, wantPolicy)
	}
	if f := r.Forward; f != nil && (f.Protocol != "tcp" && f.Protocol != "udp" || f.To.Port == 0) {
		return r, BadRequest("request %q: want a forward of protocol tcp or udp to a port from 1 on", r.Do)
	}
	return r, nil
}

// refusal is the answer that carries err.
func refusal(err error) Answer {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Kind: KindFailed, Message: err.Error()}
		var h interface{ Hint() string }
		if errors.As(err, &h) {
			e.Hint = h.Hint()
		}
	}
	return Answer{Version: Version, Error: e}
}
