package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/internal/localsock"
)

const (
	requestBytes = 1 << 20          // a policy of 20,000 rules
	answerBytes  = 96 << 20         // 65,536 flows of up to 1.5 KiB each
	idleTimeout  = time.Minute      // for the next request of a client
	writeWithin  = 10 * time.Second // for a client to read an answer
	connections  = 8                // served at once
)

// Descriptors is the maximum number of descriptors of a Server: its listener, its clients,
// and a netlink socket to verify clients.
const Descriptors = 1 + connections + 1

// ErrTaken means that a running helper has the name or path.
var ErrTaken = errors.New("name is taken by a running instance")

// Target is what a Server controls. Its methods are called concurrently. Errors made by
// BadRequest reach the client as KindRequest, others as KindFailed. If an error or one that
// it wraps has a method Hint() string, the client gets the hint as well.
type Target interface {
	Info() Info
	Flows() ([]Flow, error)
	Stats() Stats
	Forwards() ([]Forward, error)
	// AddForward opens a forward and returns it with the address and port on which it
	// listens.
	AddForward(Forward) (Forward, error)
	// RemoveForward closes a forward. Its flows continue.
	RemoveForward(Forward) error
	// Policy returns the policy in force in the format of a policy file.
	Policy() (string, error)
	// SetPolicy replaces the policy for new flows.
	SetPolicy(text string) error
	// Stop ends the helper. It is called after the client has been answered.
	Stop()
}

// Server answers requests. Use Listen or ListenPath to make one.
type Server struct {
	l        *net.UnixListener
	verifier *netnsVerifier // nil for an abstract socket, which only its namespace can reach
}

// CheckName returns an error if a helper can't have the name. A name made of digits would
// be taken for a process id.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > 64:
		return fmt.Errorf("name %q: want 1 to 64 characters", name)
	case strings.Trim(name, "0123456789") == "":
		return fmt.Errorf("name %q: a name of digits only would be taken for a process id", name)
	}
	for _, c := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", c) {
			return fmt.Errorf("name %q: want only letters, digits, dots, dashes and underscores", name)
		}
	}
	return nil
}

// Listen opens the abstract socket of a helper in the caller's network namespace. It does
// not check the name. The error wraps ErrTaken if a running helper has it.
func Listen(name string) (*Server, error) {
	l, err := socketKind.Own(name).Listen()
	if err != nil {
		return nil, fmt.Errorf("listen for control as %q: %w", name, asTaken(err))
	}
	return &Server{l: l}, nil
}

// ListenPath opens a socket at path that only the user can access. It replaces a socket on
// which no process listens any more, but no other file: the error then wraps ErrTaken or
// fs.ErrExist. It wraps errors.ErrUnsupported if the kernel can't find a peer's network
// namespace (CONFIG_UNIX_DIAG).
func ListenPath(path string) (*Server, error) {
	l, err := localsock.ListenFile(path)
	if err != nil {
		return nil, fmt.Errorf("listen for control at %s: %w", path, asTaken(err))
	}
	s := &Server{l: l}
	if s.verifier, err = newNetnsVerifier(); err == nil {
		err = s.testVerifier()
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("listen for control at %s: %w", path, err)
	}
	return s, nil
}

func asTaken(err error) error {
	if errors.Is(err, localsock.ErrTaken) {
		return ErrTaken
	}
	return err
}

// testVerifier looks up the server's own socket.
func (s *Server) testVerifier() error {
	err := localsock.Control(s.l, func(fd int) error {
		inode, err := inodeOf(fd)
		if err == nil {
			_, err = s.verifier.find(inode)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("find network namespaces of sockets (CONFIG_UNIX_DIAG): %w: %w", errors.ErrUnsupported, err)
	}
	return nil
}

// Close closes the listener and removes its socket file. A running Serve returns.
func (s *Server) Close() error {
	err := s.l.Close() // first: no client may come without a verifier
	if s.verifier != nil {
		s.verifier.socket.Close()
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Serve answers requests until ctx ends or the Server is closed, and then returns nil. It
// closes all connections before it returns.
func (s *Server) Serve(ctx context.Context, t Target) error {
	defer s.Close()
	err := localsock.Serve(ctx, s.l, connections, func(c net.Conn) {
		if err := s.authorize(c.(*net.UnixConn)); err != nil {
			send(c, refusal(err))
			return
		}
		answerAll(c, t)
	})
	if err != nil {
		return fmt.Errorf("accept control connection: %w", err)
	}
	return nil
}

// authorize returns an error if the peer of c may not control the helper.
func (s *Server) authorize(c *net.UnixConn) error {
	uid, err := localsock.PeerUID(c)
	if err != nil {
		return err
	}
	if !localsock.Admits(uid) {
		return fmt.Errorf("user %d may not control the instance of user %d", uid, os.Getuid())
	}
	if s.verifier == nil {
		return nil
	}
	local := false
	err = localsock.Control(c, func(fd int) (err error) {
		local, err = s.verifier.isLocal(fd)
		return err
	})
	if err == nil && !local {
		err = errors.New("a process in another network namespace may not control this instance")
	}
	return err
}

// send sends an answer. The client notices a failure by itself.
func send(c net.Conn, a Answer) error {
	c.SetWriteDeadline(time.Now().Add(writeWithin))
	out := json.NewEncoder(c)
	out.SetEscapeHTML(false) // an escaped "<" takes six bytes, and the guest chooses names
	return out.Encode(a)
}

func answerAll(c net.Conn, t Target) {
	in := bufio.NewScanner(c)
	in.Buffer(make([]byte, 0, 4096), requestBytes)
	for {
		c.SetReadDeadline(time.Now().Add(idleTimeout))
		if !in.Scan() || in.Err() != nil { // Scan returns part of a line after the deadline
			if errors.Is(in.Err(), bufio.ErrTooLong) {
				send(c, refusal(BadRequest("the request is longer than %d bytes", requestBytes)))
			}
			return
		}
		a, last := answer(in.Bytes(), t)
		err := send(c, a)
		if last {
			t.Stop()
			return
		}
		if err != nil {
			return
		}
	}
}

// answer carries out the request on a line. stop is true if it is OpStop.
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

// parse parses a request. It checks that the request has the fields of its kind and no
// others.
func parse(line []byte) (Request, error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(line, &version); err != nil {
		return Request{}, BadRequest("read request: %v", err)
	}
	if version.Version != Version {
		return Request{}, &Error{Kind: KindVersion, Message: fmt.Sprintf("the instance uses version %d of the control protocol, not %d", Version, version.Version)}
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
	if !slices.Contains(ops, r.Do) {
		return r, BadRequest("unknown request %q", r.Do)
	}
	for _, field := range []struct {
		name      string
		want, got bool
	}{
		{"forward", r.Do == OpForwardAdd || r.Do == OpForwardRemove, r.Forward != nil},
		{"policy", r.Do == OpPolicySet, r.Policy != nil},
	} {
		if field.want && !field.got {
			return r, BadRequest("request %q needs the field %q", r.Do, field.name)
		}
		if field.got && !field.want {
			return r, BadRequest("request %q does not take the field %q", r.Do, field.name)
		}
	}
	if f := r.Forward; f != nil && (f.Protocol != "tcp" && f.Protocol != "udp" || f.To.Port == 0) {
		return r, BadRequest("request %q: want a forward of protocol tcp or udp to a port above 0", r.Do)
	}
	return r, nil
}

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
