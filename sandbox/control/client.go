package control

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/internal/localsock"

	"golang.org/x/sync/errgroup"
)

// socketKind is the prefix of the names of our abstract sockets.
const socketKind localsock.Kind = "cleat"

var (
	// ErrNotRunning means that no running helper has the name, process id or path.
	ErrNotRunning = errors.New("no such instance is running")
	// ErrAmbiguous means that helpers of several users have the name.
	ErrAmbiguous = errors.New("several instances have this name")
)

// answerWithin is how long a helper may take to answer. Opening a port takes microseconds,
// and a busy helper answers between two batches.
const answerWithin = 10 * time.Second

const (
	// listConcurrency is the number of helpers that List queries at once.
	listConcurrency = 32
	// infoBytes is the longest answer that List reads. Command lines have up to 2 MiB, the
	// limit of execve(2) with the usual stack limit, and escapes make them longer.
	infoBytes = 4 << 20
)

// Client is a connection to a helper. It is not safe for concurrent use.
type Client struct {
	c  *net.UnixConn
	in *bufio.Scanner
}

// List returns the helpers in this network namespace that the caller may control, sorted by
// process id. Name, user and process id come from the kernel and not from the helper, since
// root also queries the helpers of other users. List omits helpers that exit or do not
// answer within ten seconds.
func List(ctx context.Context) ([]Info, error) {
	sockets, err := socketKind.List()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var (
		queries errgroup.Group
		mu      sync.Mutex
		all     []Info
	)
	queries.SetLimit(listConcurrency)
	for _, s := range roundRobin(sockets) {
		if ctx.Err() != nil {
			break
		}
		queries.Go(func() error {
			if info, err := identify(ctx, s); err == nil {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, info)
			}
			return nil
		})
	}
	_ = queries.Wait() // never fails
	slices.SortFunc(all, func(a, b Info) int { return cmp.Or(a.PID-b.PID, a.UID-b.UID, cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// roundRobin returns the sockets that the caller may use. The caller's own come first, then
// one socket of each other user, then a second one of each, so that a user with many
// sockets can't delay those of others.
func roundRobin(sockets []localsock.Socket) (out []localsock.Socket) {
	turn, turns := map[localsock.Socket]int{}, map[int]int{}
	for _, s := range sockets {
		if !s.Ours() {
			continue
		}
		if out = append(out, s); s.UID != os.Getuid() {
			turns[s.UID]++
			turn[s] = turns[s.UID]
		}
	}
	slices.SortStableFunc(out, func(a, b localsock.Socket) int { return turn[a] - turn[b] })
	return out
}

// identify returns the Info of the helper at s, with the kernel's values where there are
// some.
func identify(ctx context.Context, s localsock.Socket) (Info, error) {
	c, err := dial(ctx, s)
	if err != nil {
		return Info{}, err
	}
	defer c.Close()
	c.in.Buffer(make([]byte, 0, 4096), infoBytes)
	info, err := c.Info(ctx)
	if err != nil {
		return Info{}, err
	}
	info.Name, info.UID = s.Name, s.UID
	info.PID, err = localsock.PeerPID(c.c)
	return info, err
}

// Dial connects to a helper. ref is the path of its socket (anything with a slash), its
// name, its process id, or the process id of its command. The caller's own helper is
// preferred to one of another user with the same name. The error wraps ErrNotRunning or
// ErrAmbiguous.
func Dial(ctx context.Context, ref string) (*Client, error) {
	if strings.Contains(ref, "/") {
		c, err := localsock.DialFile(ctx, ref)
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("connect to the instance at %s: %w", ref, ErrNotRunning)
		}
		return newClient(c, err)
	}
	sockets, err := socketKind.List()
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(sockets, func(s localsock.Socket) bool { return s.Name != ref || !s.Ours() })
	if i := slices.Index(found, socketKind.Own(ref)); i >= 0 {
		found = found[i : i+1]
	}
	switch len(found) {
	case 0:
		return dialPID(ctx, ref)
	case 1:
		return dial(ctx, found[0])
	}
	return nil, fmt.Errorf("connect to instance %q: %w", ref, ErrAmbiguous)
}

// dialPID connects to a helper by its process id or that of its command.
func dialPID(ctx context.Context, ref string) (*Client, error) {
	pid, err := strconv.Atoi(ref)
	if err != nil {
		return nil, fmt.Errorf("connect to instance %q: %w", ref, ErrNotRunning)
	}
	all, err := List(ctx)
	if err != nil {
		return nil, err
	}
	found, err := findByPID(all, pid)
	if err != nil {
		return nil, fmt.Errorf("connect to the instance of process %d: %w", pid, err)
	}
	return dial(ctx, localsock.Socket{Kind: socketKind, UID: found.UID, Name: found.Name})
}

// findByPID returns the helper with a process id, or whose command has it. The latter is
// only claimed by the helper. So the caller's own helpers come first, and claims of other
// users' helpers must not conflict.
func findByPID(all []Info, pid int) (Info, error) {
	for _, own := range []bool{true, false} {
		var claims []Info
		for _, i := range all {
			switch {
			case (i.UID == os.Getuid()) != own:
			case i.PID == pid:
				return i, nil
			case i.Namespace == fmt.Sprintf("/proc/%d/ns/net", pid):
				claims = append(claims, i)
			}
		}
		if len(claims) > 1 {
			return Info{}, ErrAmbiguous
		}
		if len(claims) == 1 {
			return claims[0], nil
		}
	}
	return Info{}, ErrNotRunning
}

// dial connects to the helper at s, which must run as the user of s.
func dial(ctx context.Context, s localsock.Socket) (*Client, error) { return newClient(s.Dial(ctx)) }

// newClient takes the results of a dial.
func newClient(c *net.UnixConn, err error) (*Client, error) {
	if err != nil {
		return nil, fmt.Errorf("connect to the instance: %w", err)
	}
	in := bufio.NewScanner(c)
	in.Buffer(make([]byte, 0, 4096), answerBytes)
	return &Client{c: c, in: in}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.c.Close() }

// do sends a request and waits up to ten seconds for the answer. An Error of the server is
// returned as such.
func (c *Client) do(ctx context.Context, r Request) (Answer, error) {
	deadline := time.Now().Add(answerWithin)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	c.c.SetDeadline(deadline)
	defer context.AfterFunc(ctx, func() { c.c.SetDeadline(time.Unix(1, 0)) })()
	r.Version = Version
	// A server that rejects the peer answers with the reason and hangs up, possibly before
	// the request is written. The answer can be read even if the write has failed.
	sent := json.NewEncoder(c.c).Encode(r)
	if !c.in.Scan() {
		err := cmp.Or(sent, c.in.Err(), errors.New("the instance hung up"))
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Answer{}, fmt.Errorf("ask the instance for %q: %w", r.Do, err)
	}
	var a Answer
	if err := json.Unmarshal(c.in.Bytes(), &a); err != nil {
		return Answer{}, fmt.Errorf("read the instance's answer to %q: %w", r.Do, err)
	}
	if a.Error != nil {
		return Answer{}, a.Error
	}
	return a, nil
}

// get sends a request whose answer has a value.
func get[T any](ctx context.Context, c *Client, op Op, value func(Answer) *T) (T, error) {
	var zero T
	a, err := c.do(ctx, Request{Do: op})
	if err != nil {
		return zero, err
	}
	if v := value(a); v != nil {
		return *v, nil
	}
	return zero, noValue(op)
}

func noValue(op Op) error { return fmt.Errorf("read the instance's answer to %q: it is empty", op) }

// Info returns the helper's description.
func (c *Client) Info(ctx context.Context) (Info, error) {
	return get(ctx, c, OpInfo, func(a Answer) *Info { return a.Info })
}

// Flows returns the current flows.
func (c *Client) Flows(ctx context.Context) ([]Flow, error) {
	a, err := c.do(ctx, Request{Do: OpFlows})
	return a.Flows, err
}

// Stats returns the counters.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	return get(ctx, c, OpStats, func(a Answer) *Stats { return a.Stats })
}

// Forwards returns the open forwards.
func (c *Client) Forwards(ctx context.Context) ([]Forward, error) {
	a, err := c.do(ctx, Request{Do: OpForwards})
	return a.Forwards, err
}

// AddForward opens a forward. The result has the address and port on which it listens.
func (c *Client) AddForward(ctx context.Context, f Forward) (Forward, error) {
	a, err := c.do(ctx, Request{Do: OpForwardAdd, Forward: &f})
	if err == nil && len(a.Forwards) != 1 {
		err = noValue(OpForwardAdd)
	}
	if err != nil {
		return Forward{}, err
	}
	return a.Forwards[0], nil
}

// RemoveForward closes a forward.
func (c *Client) RemoveForward(ctx context.Context, f Forward) error {
	_, err := c.do(ctx, Request{Do: OpForwardRemove, Forward: &f})
	return err
}

// Policy returns the policy in force.
func (c *Client) Policy(ctx context.Context) (string, error) {
	return get(ctx, c, OpPolicy, func(a Answer) *string { return a.Policy })
}

// SetPolicy replaces the policy. Flows that already exist keep the old one.
func (c *Client) SetPolicy(ctx context.Context, text string) error {
	_, err := c.do(ctx, Request{Do: OpPolicySet, Policy: &text})
	return err
}

// Stop ends the helper. A command that the helper did not start continues without a
// network.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.do(ctx, Request{Do: OpStop})
	return err
}
