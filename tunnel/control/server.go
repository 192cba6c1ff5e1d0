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

	"golang.org/x/net/netutil"
)

// sockets is the kind of our abstract sockets, the prefix of their names.
const sockets localsock.Kind = "cleat-tunnel"

const (
	maxRequestBytes = 64 << 10         // as for a whole tunnel file
	maxHeaderBytes  = 16 << 10         // more than any HTTP client sends
	readTimeout     = 10 * time.Second // for a request: slower clients are no programs
	answerTimeout   = 30 * time.Second // opening a path takes milliseconds; a reload may read from a slow disk
	idleTimeout     = time.Minute      // a client that is silent for so long is gone
	shutdownTimeout = 2 * time.Second  // for answers that are being sent when Serve ends
	maxConnections  = 16               // served at once; more wait in the listener's queue
)

// Listen opens the abstract socket of the tunnel called name in the caller's network
// namespace. It does not check the name. The error wraps ErrTaken if a tunnel of this
// name is running.
func Listen(name string) (*net.UnixListener, error) {
	l, err := sockets.Own(name).Listen()
	if errors.Is(err, localsock.ErrTaken) {
		err = takenError(sockets.Own(name))
	}
	if err != nil {
		return nil, fmt.Errorf("listen for control of %q: %w", name, err)
	}
	return l, nil
}

// takenError returns the error for a socket that is in use. Anybody can use the name of
// an abstract socket.
func takenError(s localsock.Socket) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := s.Dial(ctx)
	if err == nil {
		c.Close()
		return ErrTaken
	}
	if errors.As(err, new(*net.OpError)) { // not even connected
		return ErrTaken
	}
	return fmt.Errorf("%w: %w", ErrSquatted, err)
}

// Serve serves at l until ctx ends or l is closed, which is no error. It closes l and
// returns after the last answer.
func Serve(ctx context.Context, l *net.UnixListener, t Target) error {
	if err := serve(ctx, gate{Listener: l, admit: admitUser(localsock.PeerUID)}, handler(t)); err != nil {
		return fmt.Errorf("serve control: %w", err)
	}
	return nil
}

func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	l = netutil.LimitListener(l, maxConnections)
	var connections sync.WaitGroup
	s := http.Server{
		Handler: h, ReadTimeout: readTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		// StateNew is reported before a connection has a goroutine, StateClosed when the
		// goroutine ends.
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				connections.Add(1)
			case http.StateClosed:
				connections.Done()
			}
		},
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		l.Close()
		grace, stop := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer stop()
		if s.Shutdown(grace) != nil {
			s.Close() // slower answers are cut off
		}
	}()
	err := s.Serve(l)
	closed := ctx.Err() != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed)
	cancel()
	<-ended
	connections.Wait()
	if closed {
		return nil
	}
	return err
}

type gate struct {
	net.Listener
	admit func(net.Conn) *Error
}

// Accept implements net.Listener.
func (g gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		refusal := g.admit(c)
		if refusal == nil {
			return c, nil
		}
		reject(c, refusal)
	}
}

// admitUser returns a function that returns the reason why a peer may not control the
// tunnel, or nil. peer returns the user of the peer.
func admitUser(peer func(*net.UnixConn) (int, error)) func(net.Conn) *Error {
	return func(c net.Conn) *Error {
		u, ok := c.(*net.UnixConn)
		if !ok {
			return &Error{Status: http.StatusForbidden, Message: "commands are accepted on Unix sockets only"}
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

// reject sends the reason and closes the connection. It does not read the request, so as
// not to wait for it; the few bytes always fit into the socket's empty buffer.
func reject(c net.Conn, refusal *Error) {
	defer c.Close()
	body, err := json.Marshal(refusal)
	if err != nil {
		return
	}
	c.SetWriteDeadline(time.Now().Add(time.Second))
	fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		refusal.Status, http.StatusText(refusal.Status), len(body), body)
}
