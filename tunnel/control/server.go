package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"cleat/internal/localsock"
)

// sockets is what the names of our abstract sockets begin with.
const sockets localsock.Kind = "cleat-tunnel"

const (
	requestBytes = 64 << 10         // as much as a whole tunnel file
	headerBytes  = 16 << 10         // more than any client of HTTP sends
	readWithin   = 10 * time.Second // a request; who is slower is no program that asks
	answerWithin = 30 * time.Second // opening a path takes milliseconds; a reload may read from a slow disk
	idle         = time.Minute      // a client that says nothing for so long is gone
	endWithin    = 2 * time.Second  // answers that are under way when Serve is to end
	connections  = 16               // served at once; more wait in the listener's queue
)

// Listen opens the abstract socket of the tunnel called name in the caller's
// network namespace. The name is one that a tunnel file may have, which is not
// checked. The error wraps ErrTaken where one of this name is running.
func Listen(name string) (*net.UnixListener, error) {
	l, err := sockets.Own(name).Listen()
	if errors.Is(err, localsock.ErrTaken) {
		err = taken(sockets.Own(name))
	}
	if err != nil {
		return nil, fmt.Errorf("listen for control as %q: %w", name, err)
	}
	return l, nil
}

// taken says who has taken a socket. Names of abstract sockets are anybody's.
func taken(s localsock.Socket) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := s.Dial(ctx)
	if err == nil {
		c.Close()
		return ErrTaken
	}
	if errors.As(err, new(*net.OpError)) { // it is not even connected
		return ErrTaken
	}
	return fmt.Errorf("%w: %w", ErrSquatted, err)
}

// Serve answers at l until ctx ends or l is closed, which is no error. It closes l
// and returns when the last answer has been given.
func Serve(ctx context.Context, l *net.UnixListener, t Target) error {
	if err := serve(ctx, &door{Listener: l, admit: admit(localsock.PeerUID)}, handler(t)); err != nil {
		return fmt.Errorf("serve control: %w", err)
	}
	return nil
}

// serve answers at d with h.
func serve(ctx context.Context, d *door, h http.Handler) error {
	var visits sync.WaitGroup
	s := http.Server{
		Handler: h, ReadTimeout: readWithin, WriteTimeout: answerWithin, IdleTimeout: idle, MaxHeaderBytes: headerBytes,
		// New is said before a connection has a goroutine, Closed when that ends.
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				visits.Add(1)
			case http.StateClosed:
				visits.Done()
			}
		},
	}
	d.open()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		d.Close()
		grace, stop := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
		defer stop()
		if s.Shutdown(grace) != nil {
			s.Close() // whoever is slower than that gets no answer
		}
	}()
	err := s.Serve(d)
	closed := ctx.Err() != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed)
	cancel()
	<-ended
	visits.Wait()
	if closed {
		return nil
	}
	return err
}

// door is a listener that turns strangers away and lets so many in at once.
type door struct {
	net.Listener
	admit func(net.Conn) *Error // nil: everybody is admitted

	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

// open makes the door ready to be used.
func (d *door) open() { d.room, d.closed = make(chan struct{}, connections), make(chan struct{}) }

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		select {
		case d.room <- struct{}{}:
		case <-d.closed:
			return nil, net.ErrClosed
		}
		c, err := d.Listener.Accept()
		if err != nil {
			<-d.room
			return nil, err
		}
		if d.admit != nil {
			if why := d.admit(c); why != nil {
				turnAway(c, why)
				<-d.room
				continue
			}
		}
		return &visitor{Conn: c, leave: sync.OnceFunc(func() { <-d.room })}, nil
	}
}

// Close implements net.Listener; it also ends an Accept that waits for room.
func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Listener.Close()
}

// visitor is a connection that was let in.
type visitor struct {
	net.Conn
	leave func()
}

func (v *visitor) Close() error {
	v.leave()
	return v.Conn.Close()
}

// admit says why a peer may not give orders, by the user that peer finds out.
func admit(peer func(*net.UnixConn) (int, error)) func(net.Conn) *Error {
	return func(c net.Conn) *Error {
		u, ok := c.(*net.UnixConn)
		if !ok {
			return &Error{Status: http.StatusForbidden, Message: "orders are taken from Unix sockets only"}
		}
		uid, err := peer(u)
		switch {
		case err != nil:
			return &Error{Status: http.StatusForbidden, Message: err.Error()}
		case !localsock.Admits(uid):
			return &Error{Status: http.StatusForbidden,
				Message: fmt.Sprintf("user %d may not control the tunnel of user %d", uid, os.Getuid())}
		}
		return nil
	}
}

// turnAway says why and hangs up. It does not read what the peer wants, so as not
// to wait for it; the few bytes always fit into the socket's empty buffer.
func turnAway(c net.Conn, why *Error) {
	defer c.Close()
	body, err := json.Marshal(why)
	if err != nil {
		return
	}
	c.SetWriteDeadline(time.Now().Add(time.Second))
	fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		why.Status, http.StatusText(why.Status), len(body), body)
}
