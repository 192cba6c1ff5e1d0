package names

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"cleat/internal/localsock"

	"golang.org/x/sys/unix"
)

// answerWithin is how long a server may take to answer. Fifty thousand names take it a second.
const answerWithin = 10 * time.Second

// Client is a connection to a server. It is safe for concurrent use: requests wait for each
// other. Each request is in force when its method returns. Errors of the server are of type
// *Error. After any other error, including the end of a context, the Client is of no use. The
// error wraps ErrNotRunning if the server has ended.
type Client struct {
	mu   sync.Mutex
	conn *net.UnixConn
	in   *bufio.Scanner
}

// Dial connects to the server whose control socket is at path. The server must belong to the
// caller's user or root. The error wraps ErrNotRunning if no server listens there.
func Dial(ctx context.Context, path string) (*Client, error) {
	conn, err := localsock.DialFile(ctx, path)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("connect to the name server at %s: %w", path, ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the name server: %w", err)
	}
	in := bufio.NewScanner(conn)
	in.Buffer(make([]byte, 0, 4096), maxLine)
	return &Client{conn: conn, in: in}, nil
}

// Close closes the connection. The server keeps what it was given.
func (c *Client) Close() error { return c.conn.Close() }

// do sends a request with descriptors and waits for the response.
func (c *Client) do(ctx context.Context, r request, rights []byte) (response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	deadline := time.Now().Add(answerWithin)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	c.conn.SetDeadline(deadline)
	defer context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })()
	r.Version = version
	line, err := json.Marshal(r)
	if err != nil {
		return response{}, err
	}
	// A server that refuses the peer answers and hangs up, perhaps before the request was
	// written. Its answer can be read even if the write has failed.
	sent := c.send(append(line, '\n'), rights)
	var a response
	if !c.in.Scan() {
		err = cmp.Or(sent, c.in.Err(), ErrNotRunning)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) { // it ended before it had read all
			err = ErrNotRunning
		}
	} else if err = json.Unmarshal(c.in.Bytes(), &a); err != nil {
		err = readError(err)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
		fallthrough
	case err != nil:
		c.conn.Close() // the answer to this request must not be taken for another's
		return response{}, fmt.Errorf("ask the name server for %q: %w", r.Do, err)
	case a.Error != nil:
		return response{}, a.Error
	}
	return a, nil
}

func readError(err error) error { return fmt.Errorf("read the name server's answer: %w", err) }

// send writes a line, and descriptors with its first bytes.
func (c *Client) send(line, rights []byte) error {
	if rights != nil {
		n, _, err := c.conn.WriteMsgUnix(line, rights, nil)
		if err != nil {
			return err
		}
		line = line[n:]
	}
	_, err := c.conn.Write(line)
	return err
}

// Replace adds a network, or replaces all that the server knows about it. Sockets that see the
// network stay open, and queries in progress are answered.
func (c *Client) Replace(ctx context.Context, n Network) error {
	_, err := c.do(ctx, request{Do: opReplace, Network: &n}, nil)
	return err
}

// Set changes endpoints of a network. The error wraps ErrNotFound if the server does not know
// the network, which is so after a restart of the server: Replace it.
func (c *Client) Set(ctx context.Context, network string, change Change) error {
	_, err := c.do(ctx, request{Do: opSet, Name: network, Change: &change}, nil)
	return err
}

// Drop removes a network, and closes the sockets that see no other one. Dropping an unknown
// network is no error.
func (c *Client) Drop(ctx context.Context, network string) error {
	_, err := c.do(ctx, request{Do: opDrop, Name: network}, nil)
	return err
}

// Network returns a network with its endpoints, sorted by ID. The error wraps ErrNotFound if
// the server does not know it.
func (c *Client) Network(ctx context.Context, name string) (Network, error) {
	a, err := c.do(ctx, request{Do: opZone, Name: name}, nil)
	if err == nil && a.Network == nil {
		err = readError(errors.New("it is empty"))
	}
	if err != nil {
		return Network{}, err
	}
	return *a.Network, nil
}

// Serve passes a bound UDP socket and a listening TCP socket to the server, in place of those
// with the same ID. The caller may close its own descriptors afterwards. The error wraps
// ErrNotFound if the server does not know one of the networks.
func (c *Client) Serve(ctx context.Context, s Socket, udp, tcp *os.File) error {
	// Fd would make the sockets blocking, for the server as well.
	return localsock.Control(udp, func(u int) error {
		return localsock.Control(tcp, func(t int) error { return c.serve(ctx, s, u, t) })
	})
}

// ServeWhile is Serve until a process ends. The server closes the sockets then, even if nobody
// calls Stop: sockets keep the network namespace of a container alive. process is a pidfd
// (pidfd_open(2)).
func (c *Client) ServeWhile(ctx context.Context, s Socket, udp, tcp, process *os.File) error {
	return localsock.Control(udp, func(u int) error {
		return localsock.Control(tcp, func(t int) error {
			return localsock.Control(process, func(p int) error { return c.serve(ctx, s, u, t, p) })
		})
	})
}

func (c *Client) serve(ctx context.Context, s Socket, fds ...int) error {
	_, err := c.do(ctx, request{Do: opServe, Socket: &s}, unix.UnixRights(fds...))
	return err
}

// Update changes what is visible through sockets that are served. No query is lost. The error
// wraps ErrNotFound if no sockets have the ID, or the server does not know one of the networks.
func (c *Client) Update(ctx context.Context, s Socket) error {
	_, err := c.do(ctx, request{Do: opUpdate, Socket: &s}, nil)
	return err
}

// Stop closes the sockets with this ID. Their addresses are free when it returns. An unknown
// ID is no error.
func (c *Client) Stop(ctx context.Context, id string) error {
	_, err := c.do(ctx, request{Do: opStop, ID: id}, nil)
	return err
}

// State returns what is served, and counters.
func (c *Client) State(ctx context.Context) (State, error) {
	a, err := c.do(ctx, request{Do: opState}, nil)
	if err == nil && a.State == nil {
		err = readError(errors.New("it is empty"))
	}
	if err != nil {
		return State{}, err
	}
	return *a.State, nil
}
