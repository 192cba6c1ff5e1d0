package control

import (
	"bytes"
	"cmp"
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

// Limits for root, who queries other users' programs, which may answer anything, or
// nothing.
const (
	maxAnswerBytes = 256 << 10        // 64 paths need 60 KiB, metrics as much
	listTimeout    = 2 * time.Second  // for a list; tunnels that have not answered by then are left out
	maxListed      = 256              // tunnels in a list, the user's own first; all are queried at once
	goneTimeout    = 10 * time.Second // Serve waits shutdownTimeout for answers, and the kernel for a device
)

// Client controls a tunnel. It is safe for concurrent use.
type Client struct {
	socket localsock.Socket
	http   http.Client
}

// List returns the status of every tunnel that the caller may control in this network
// namespace, ordered by name, at most 256. Tunnels that end in the meantime or do not
// answer within two seconds are left out.
func List(ctx context.Context) ([]Status, error) {
	all, err := controllable()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b localsock.Socket) int { return ownFirst(a) - ownFirst(b) })
	all = all[:min(len(all), maxListed)]
	within, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var querying sync.WaitGroup
	answers := make([]*Status, len(all))
	for i, s := range all {
		querying.Go(func() { answers[i] = queryStatus(within, s) })
	}
	querying.Wait()
	var found []Status
	for _, a := range answers {
		if a != nil {
			found = append(found, *a)
		}
	}
	slices.SortStableFunc(found, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return found, ctx.Err()
}

// ownFirst is a sort key: 0 for a socket of the caller's user, 1 for others.
func ownFirst(s localsock.Socket) int {
	if s.UID == os.Getuid() {
		return 0
	}
	return 1
}

// queryStatus returns the status of a tunnel, or nil if it does not answer. Name and user
// are those of the socket, whatever the tunnel says.
func queryStatus(ctx context.Context, s localsock.Socket) *Status {
	c := newClient(s)
	defer c.Close()
	status, err := c.Status(ctx)
	if err != nil {
		return nil
	}
	status.Name, status.UID = s.Name, s.UID
	return &status
}

// Names returns the names of the tunnels that the caller may control, sorted.
func Names() ([]string, error) {
	all, err := controllable()
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	return slices.Compact(names), err
}

// controllable returns the tunnels that the caller may control, by name and user.
func controllable() ([]localsock.Socket, error) {
	all, err := sockets.List()
	if err != nil {
		return nil, err
	}
	// Anybody can create a socket of any name. Ignore those that no tunnel can have.
	all = slices.DeleteFunc(all, func(s localsock.Socket) bool { return !s.Ours() || !spec.ValidName(s.Name) })
	slices.SortFunc(all, func(a, b localsock.Socket) int { return cmp.Or(strings.Compare(a.Name, b.Name), a.UID-b.UID) })
	return all, nil
}

// Dial returns the client of the tunnel called name, or UID/NAME for that user's. A
// tunnel of the caller's user takes precedence over another user's of the same name. The
// error wraps ErrNotRunning or ErrAmbiguous.
func Dial(ctx context.Context, name string) (*Client, error) {
	s, err := resolve(name)
	if err != nil {
		return nil, fmt.Errorf("connect to tunnel %q: %w", name, err)
	}
	conn, err := s.Dial(ctx)
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = ErrNotRunning // it has ended in the meantime
	}
	if err != nil {
		return nil, fmt.Errorf("connect to tunnel %q: %w", name, err)
	}
	conn.Close() // each request opens its own connection
	return newClient(s), nil
}

func resolve(name string) (localsock.Socket, error) {
	all, err := controllable()
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
				return nil, err // not a nil *net.UnixConn
			}
			return c, nil
		}, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       answerTimeout,
	}}
}

// Close closes the connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do sends a request with body as JSON, if not nil, and returns the body of the answer.
// An error from the tunnel is an *Error.
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
		return nil, c.requestError(ctx, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes))
	if err != nil {
		return nil, c.requestError(ctx, err)
	}
	if answer.StatusCode/100 != 2 {
		return nil, readError(answer.StatusCode, text)
	}
	return text, nil
}

func (c *Client) requestError(ctx context.Context, err error) error {
	var u *url.Error
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, syscall.ECONNREFUSED):
		err = ErrNotRunning
	case errors.As(err, &u):
		err = u.Err // without the URL, which the user has not typed
	}
	return fmt.Errorf("query tunnel %q: %w", c.socket.Name, err)
}

func decode[T any](text []byte, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("parse the tunnel's answer: %w", err)
	}
	sanitize(reflect.ValueOf(&v))
	return v, nil
}

// sanitize applies spec.Plain to all strings in a document, because they are printed.
func sanitize(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			sanitize(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			sanitize(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			sanitize(v.Field(i))
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString(spec.Plain(v.String()))
		}
	}
}

// Status returns the status of the tunnel.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return decode[Status](c.do(ctx, http.MethodGet, "/v1/status", nil))
}

// Metrics returns the metrics in Prometheus' format. Every line is printable.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	text, err := c.do(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if spec.Plain(line) != line {
			return nil, fmt.Errorf("parse the tunnel's answer: %q is no metric", line[:min(len(line), 80)])
		}
	}
	return text, nil
}

// SetPath enables or disables a path.
func (c *Client) SetPath(ctx context.Context, name string, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return c.pathRequest(ctx, http.MethodPost, name, setPathBody{state})
}

// AddPath adds a path. Ports that are 0 become the tunnel's.
func (c *Client) AddPath(ctx context.Context, p spec.Path) error {
	return c.pathRequest(ctx, http.MethodPut, p.Name, bodyOf(p))
}

// RemovePath removes a path.
func (c *Client) RemovePath(ctx context.Context, name string) error {
	return c.pathRequest(ctx, http.MethodDelete, name, nil)
}

func (c *Client) pathRequest(ctx context.Context, method, name string, body any) error {
	if name == "" || name == "." || name == ".." { // they have a meaning in a URL
		return badRequest("path name %q is not allowed", name)
	}
	_, err := c.do(ctx, method, "/v1/paths/"+url.PathEscape(name), body)
	return err
}

// Reload makes the tunnel read its file again.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	return decode[Reloaded](c.do(ctx, http.MethodPost, "/v1/reload", nil))
}

// Stop ends the tunnel. The tunnel may still be running when Stop returns: see WaitGone.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/v1/stop", nil)
	return err
}

// WaitGone waits until the tunnel's name is free, for at most ten seconds.
func (c *Client) WaitGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, goneTimeout, fmt.Errorf("still running after %v", goneTimeout))
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
		case <-time.After(20 * time.Millisecond): // not noticeable
		case <-ctx.Done():
			return fmt.Errorf("wait for tunnel %q to end: %w", c.socket.Name, context.Cause(ctx))
		}
	}
}
