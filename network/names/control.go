package names

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"cleat/internal/dnsname"
	"cleat/internal/localsock"
)

// maxControllers limits the connections of controllers. Others wait.
const maxControllers = 64

// serveControl serves controllers until ctx ends.
func (s *server) serveControl(ctx context.Context, l *net.UnixListener) error {
	err := localsock.Serve(ctx, l, maxControllers, func(c net.Conn) { s.serveController(ctx, c.(*net.UnixConn)) })
	if err != nil {
		return fmt.Errorf("accept a controller: %w", err)
	}
	return nil
}

// serveController carries out the requests of one controller.
func (s *server) serveController(ctx context.Context, c *net.UnixConn) {
	if err := authorize(c); err != nil {
		_ = sendLine(c, refusal(err))
		return
	}
	in := &lines{c: c}
	defer func() { closeAll(in.descriptors()) }()
	for {
		line, err := in.next()
		if err != nil {
			if refused := new(Error); errors.As(err, &refused) {
				_ = sendLine(c, refusal(err))
			}
			return
		}
		fds := in.descriptors()
		r, err := parseRequest(line)
		if err == nil && r.Do == opWatch {
			closeAll(fds)
			s.watch(ctx, c, in, r.Networks)
			return
		}
		a := response{Version: version}
		if err == nil {
			err = s.carryOut(r, fds, &a)
		} else {
			closeAll(fds)
		}
		if err != nil {
			a = refusal(err)
		}
		if sendLine(c, a) != nil {
			return
		}
	}
}

// authorize returns an error if the peer may not control the server.
func authorize(c *net.UnixConn) error {
	uid, err := localsock.PeerUID(c)
	if err == nil && !localsock.Admits(uid) {
		err = fmt.Errorf("user %d may not control the name server of user %d", uid, os.Getuid())
	}
	return err
}

func refusal(err error) response {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{KindFailed, err.Error()}
	}
	return response{Version: version, Error: e}
}

// parseRequest parses a line and checks that the request has what its operation needs.
func parseRequest(line []byte) (request, error) {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return request{}, badRequest("read request: %v", err)
	}
	if v.Version != version {
		return request{}, &Error{KindVersion, fmt.Sprintf("the name server uses version %d of the control protocol, not %d", version, v.Version)}
	}
	var r request
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return r, badRequest("read request: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return r, badRequest("read request: more than one object on the line")
	}
	missing := map[op]bool{
		opReplace: r.Network == nil, opSet: r.Name == "" || r.Change == nil, opDrop: r.Name == "", opZone: r.Name == "",
		opServe: r.Socket == nil, opUpdate: r.Socket == nil, opStop: r.ID == "", opState: false, opWatch: false,
	}
	lacks, known := missing[r.Do]
	if !known {
		return r, badRequest("unknown request %q", r.Do)
	}
	if lacks {
		return r, badRequest("request %q lacks a field", r.Do)
	}
	return r, nil
}

// carryOut carries out a request. It owns fds.
func (s *server) carryOut(r request, fds []int, a *response) error {
	if r.Do == opServe {
		return s.serve(*r.Socket, fds)
	}
	closeAll(fds)
	switch r.Do {
	case opReplace:
		return s.replace(*r.Network)
	case opSet:
		return s.set(r.Name, *r.Change)
	case opDrop:
		s.drop(r.Name)
	case opZone:
		n, err := s.zone(r.Name)
		a.Network = &n
		return err
	case opUpdate:
		return s.update(*r.Socket)
	case opStop:
		s.stop(r.ID)
	case opState:
		state := s.state()
		a.State = &state
	}
	return nil
}

// watch turns a connection into a watcher's.
func (s *server) watch(ctx context.Context, c *net.UnixConn, in *lines, networks []string) {
	for i := range networks {
		networks[i] = dnsname.Fold(networks[i])
	}
	o := s.watchers.add(c, networks)
	if sendLine(c, response{Version: version}) != nil {
		s.watchers.remove(o)
		return
	}
	s.watchers.serve(ctx, o, in)
}
