package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/internal/localsock"
	"cleat/tunnel/spec"
)

// Root asks other users' programs, which may answer what they like, or nothing.
const (
	answerBytes = 256 << 10        // 64 paths need 60 KiB, metrics as much
	listWithin  = 2 * time.Second  // a list; who hasn't answered by then is left out
	listMost    = 256              // tunnels in a list, the own user's first; all are asked at once
	goneWithin  = 10 * time.Second // Serve waits endWithin for answers, and the kernel for a device
)

// Client asks and tells a tunnel. It is safe for concurrent use.
type Client struct {
	socket localsock.Socket
	http   http.Client
}

// List asks every tunnel that the caller may control, in this network namespace,
// how it is. They come ordered by name, 256 at most. One that ends meanwhile, or has not
// answered within two seconds, is left out.
func List(ctx context.Context) ([]Status, error) {
	all, err := reachable()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b localsock.Socket) int { return foreign(a) - foreign(b) })
	all = all[:min(len(all), listMost)]
	within, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	var asking sync.WaitGroup
	answers := make([]*Status, len(all))
	for i, s := range all {
		asking.Go(func() { answers[i] = ask(within, s) })
	}
	asking.Wait()
	var found []Status
	for _, a := range answers {
		if a != nil {
			found = append(found, *a)
		}
	}
	slices.SortStableFunc(found, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return found, ctx.Err()
}

// foreign is 0 for a socket of the caller's user, 1 for others.
func foreign(s localsock.Socket) int {
	if s.UID == os.Getuid() {
		return 0
	}
	return 1
}

// ask asks a tunnel how it is; nil: it does not say. Its name and its user are those of the
// socket, whatever it says.
func ask(ctx context.Context, s localsock.Socket) *Status {
	c := newClient(s)
	defer c.Close()
	status, err := c.Status(ctx)
	if err != nil {
		return nil
	}
	status.Name, status.UID = s.Name, s.UID
	return &status
}

// Names are the names of the tunnels that the caller may control, in order.
func Names() ([]string, error) {
	all, err := reachable()
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	return slices.Compact(names), err
}

// reachable are the tunnels that the caller may control, by name and user.
func reachable() ([]localsock.Socket, error) {
	all, err := sockets.List()
	if err != nil {
		return nil, err
	}
	// Anybody can make a socket of any name; one that no tunnel has is none of ours.
	all = slices.DeleteFunc(all, func(s localsock.Socket) bool { return !s.Ours() || !spec.ValidName(s.Name) })
	slices.SortFunc(all, func(a, b localsock.Socket) int {
		if a.Name != b.Name {
			return strings.Compare(a.Name, b.Name)
		}
		return a.UID - b.UID
	})
	return all, nil
}

// Dial makes the client of the tunnel called name, or UID/NAME of that user's. An own
// one goes before another user's of the same name. The error wraps ErrNotRunning
// or ErrAmbiguous.
func Dial(ctx context.Context, name string) (*Client, error) {
	s, err := find(name)
	if err != nil {
		return nil, fmt.Errorf("connect to tunnel %q: %w", name, err)
	}
	conn, err := s.Dial(ctx)
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = ErrNotRunning // it has ended since
	}
	if err != nil {
		return nil, fmt.Errorf("connect to tunnel %q: %w", name, err)
	}
	conn.Close() // each request finds a connection by itself
	return newClient(s), nil
}

// find is the socket that a name means.
func find(name string) (localsock.Socket, error) {
	all, err := reachable()
	if err != nil {
		return localsock.Socket{}, err
	}
	if user, rest, ok := strings.Cut(name, "/"); ok {
		uid, err := strconv.Atoi(user)
		s := localsock.Socket{Kind: sockets, UID: uid, Name: rest}
		if err != nil || !slices.Contains(all, s) {
			return s, ErrNotRunning
		}
		return s, nil
	}
	all = slices.DeleteFunc(all, func(s localsock.Socket) bool { return s.Name != name })
	if i := slices.IndexFunc(all, func(s localsock.Socket) bool { return s.UID == os.Getuid() }); i >= 0 {
		return all[i], nil
	}
	switch len(all) {
	case 0:
		return localsock.Socket{}, ErrNotRunning
	case 1:
		return all[0], nil
	}
	return localsock.Socket{}, ErrAmbiguous
}

func newClient(s localsock.Socket) *Client {
	return &Client{socket: s, http: http.Client{
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := s.Dial(ctx)
			if err != nil {
				return nil, err // not a *net.UnixConn that is nil
			}
			return c, nil
		}, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       answerWithin,
	}}
}

// Close ends the connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do sends a request with body as JSON, nil for none, and returns the answer's body.
// A refusal is an *Error.
func (c *Client) do(ctx context.Context, method, path string, body any) ([]byte, error) {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("write request: %w", err)
		}
		in = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://tunnel"+path, in)
	if err != nil {
		return nil, fmt.Errorf("write request: %w", err)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerBytes))
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	if answer.StatusCode/100 != 2 {
		return nil, readError(answer.StatusCode, text)
	}
	return text, nil
}

// lost explains a request that got no answer.
func (c *Client) lost(ctx context.Context, err error) error {
	var u *url.Error
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, syscall.ECONNREFUSED):
		err = ErrNotRunning
	case errors.As(err, &u):
		err = u.Err // without a URL that nobody has typed
	}
	return fmt.Errorf("ask tunnel %q: %w", c.socket.Name, err)
}

// decode reads an answer.
func decode[T any](text []byte, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("read the tunnel's answer: %w", err)
	}
	makePlain(reflect.ValueOf(&v))
	return v, nil
}

// makePlain makes all texts in a document spec.Plain: who asks prints them.
func makePlain(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			makePlain(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			makePlain(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			makePlain(v.Field(i))
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString(spec.Plain(v.String()))
		}
	}
}

// Status asks how the tunnel is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return decode[Status](c.do(ctx, http.MethodGet, "/v1/status", nil))
}

// Metrics asks for the metrics as Prometheus reads them. They are lines of text that can
// be printed.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	text, err := c.do(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if spec.Plain(line) != line {
			return nil, fmt.Errorf("read the tunnel's answer: %q is no metric", line[:min(len(line), 80)])
		}
	}
	return text, nil
}

// SetPath has a path used, or not.
func (c *Client) SetPath(ctx context.Context, name string, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return c.path(ctx, http.MethodPost, name, setPath{state})
}

// AddPath takes a further path in. Ports that are 0 become the tunnel's.
func (c *Client) AddPath(ctx context.Context, p spec.Path) error {
	return c.path(ctx, http.MethodPut, p.Name, bodyOf(p))
}

// RemovePath takes a path out.
func (c *Client) RemovePath(ctx context.Context, name string) error {
	return c.path(ctx, http.MethodDelete, name, nil)
}

// path asks for something about a path.
func (c *Client) path(ctx context.Context, method, name string, body any) error {
	if name == "" || name == "." || name == ".." { // they mean something in a URL
		return badRequest("path name %q: want a name", name)
	}
	_, err := c.do(ctx, method, "/v1/paths/"+url.PathEscape(name), body)
	return err
}

// Reload has the tunnel read its file again.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	return decode[Reloaded](c.do(ctx, http.MethodPost, "/v1/reload", nil))
}

// Stop ends the tunnel; it has not yet ended when Stop returns: see Gone.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/v1/stop", nil)
	return err
}

// Gone waits until the tunnel's name is free, for at most ten seconds.
func (c *Client) Gone(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, goneWithin, fmt.Errorf("it is still running after %v", goneWithin))
	defer cancel()
	for {
		all, err := sockets.List()
		if err != nil {
			return err
		}
		if !slices.Contains(all, c.socket) {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond): // less than a person notices
		case <-ctx.Done():
			return fmt.Errorf("wait for tunnel %q to end: %w", c.socket.Name, context.Cause(ctx))
		}
	}
}
