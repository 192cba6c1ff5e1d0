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
)

// socketKind begins the name of every abstract socket of ours.
const socketKind localsock.Kind = "cleat"

var (
	// ErrNotRunning says that no helper is running by that name, process id or
	// path.
	ErrNotRunning = errors.New("no such helper is running")
	// ErrAmbiguous says that helpers of several users have the name.
	ErrAmbiguous = errors.New("several helpers have this name")
)

// answerWithin is how long a helper may take; opening a port takes a
// microsecond, and a busy one answers between two batches.
const answerWithin = 10 * time.Second

const (
	// askAtOnce is how many helpers List asks at once.
	askAtOnce = 32
	// infoBytes is the longest answer that List reads: of 2 MiB of arguments, the most that
	// execve(2) takes with the usual stack limit, and escapes.
	infoBytes = 4 << 20
)

// Client is a connection to a helper. It is not safe for concurrent use.
type Client struct {
	c  *net.UnixConn
	in *bufio.Scanner
}

// List asks every helper that the caller may control, in this network namespace, who it is.
// They come ordered by process id. Name, user and process id are what the kernel says, since
// root asks helpers of everybody. A helper that ends meanwhile, or does not answer within ten
// seconds, is left out.
func List(ctx context.Context) ([]Info, error) {
	sockets, err := socketKind.List()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var (
		mu   sync.Mutex
		all  []Info
		wg   sync.WaitGroup
		room = make(chan struct{}, askAtOnce)
	)
	for _, s := range inTurn(sockets) {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-room }()
			info, err := identify(ctx, s)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, info)
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b Info) int { return cmp.Or(a.PID-b.PID, a.UID-b.UID, cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// inTurn orders sockets that would listen to the caller: the caller's own first, then one of
// each other user's, then a second of each, so that nobody's many sockets hide another's.
func inTurn(sockets []localsock.Socket) (out []localsock.Socket) {
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

// identify asks the helper at s who it is, and corrects what the kernel knows better.
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

// Dial connects to the helper that ref means: the path of a socket (anything
// with a slash), a name, or the helper's process id or that of its command. An
// own one goes before another user's of the same name. The error wraps
// ErrNotRunning or ErrAmbiguous.
func Dial(ctx context.Context, ref string) (*Client, error) {
	if strings.Contains(ref, "/") {
		c, err := localsock.DialFile(ctx, ref)
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("connect to the helper at %s: %w", ref, ErrNotRunning)
		}
		return newClient(c, err)
	}
	sockets, err := socketKind.List()
	if err != nil {
		return nil, err
	}
	var found []localsock.Socket
	for _, s := range sockets {
		if s.Name == ref && s.Ours() {
			found = append(found, s)
		}
	}
	if i := slices.IndexFunc(found, func(s localsock.Socket) bool { return s.UID == os.Getuid() }); i >= 0 {
		found = found[i : i+1]
	}
	switch len(found) {
	case 0:
		return dialPID(ctx, ref)
	case 1:
		return dial(ctx, found[0])
	}
	return nil, fmt.Errorf("connect to helper %q: %w", ref, ErrAmbiguous)
}

// dialPID looks for the helper by a process id, its own or its command's.
func dialPID(ctx context.Context, ref string) (*Client, error) {
	pid, err := strconv.Atoi(ref)
	if err != nil {
		return nil, fmt.Errorf("connect to helper %q: %w", ref, ErrNotRunning)
	}
	all, err := List(ctx)
	if err != nil {
		return nil, err
	}
	found, err := ofProcess(all, pid)
	if err != nil {
		return nil, fmt.Errorf("connect to the helper of process %d: %w", pid, err)
	}
	return dial(ctx, localsock.Socket{Kind: socketKind, UID: found.UID, Name: found.Name})
}

// ofProcess finds the helper with a process id, or whose command has it. The latter is a claim
// of the helper's: an own helper goes before those of other users, which must not contradict
// each other.
func ofProcess(all []Info, pid int) (Info, error) {
	for _, own := range []bool{true, false} {
		found := slices.DeleteFunc(slices.Clone(all), func(i Info) bool {
			return (i.UID == os.Getuid()) != own || i.PID != pid && i.Namespace != fmt.Sprintf("/proc/%d/ns/net", pid)
		})
		if i := slices.IndexFunc(found, func(i Info) bool { return i.PID == pid }); i >= 0 {
			return found[i], nil
		}
		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return Info{}, ErrAmbiguous
		}
	}
	return Info{}, ErrNotRunning
}

// dial connects to the helper at s, which must be of the user that s says.
func dial(ctx context.Context, s localsock.Socket) (*Client, error) { return newClient(s.Dial(ctx)) }

// newClient is the client of a connection that was made, or that was not.
func newClient(c *net.UnixConn, err error) (*Client, error) {
	if err != nil {
		return nil, fmt.Errorf("reach the helper: %w", err)
	}
	in := bufio.NewScanner(c)
	in.Buffer(make([]byte, 0, 4096), answerBytes)
	return &Client{c: c, in: in}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.c.Close() }

// do sends a request and waits for its answer, for at most ten seconds. An
// Error of the server's is returned as such.
func (c *Client) do(ctx context.Context, r Request) (Answer, error) {
	deadline := time.Now().Add(answerWithin)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	c.c.SetDeadline(deadline)
	defer context.AfterFunc(ctx, func() { c.c.SetDeadline(time.Unix(1, 0)) })()
	r.Version = Version
	// A server that does not admit us says why and hangs up, perhaps before we
	// have written: its words can be read nevertheless.
	sent := json.NewEncoder(c.c).Encode(r)
	if !c.in.Scan() {
		return Answer{}, c.lost(ctx, r, cmp.Or(sent, c.in.Err()))
	}
	var a Answer
	if err := json.Unmarshal(c.in.Bytes(), &a); err != nil {
		return Answer{}, fmt.Errorf("read the helper's answer to %q: %w", r.Do, err)
	}
	if a.Error != nil {
		return Answer{}, a.Error
	}
	return a, nil
}

// lost explains a connection that broke.
func (c *Client) lost(ctx context.Context, r Request, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else if err == nil {
		err = errors.New("it hung up")
	}
	return fmt.Errorf("ask the helper for %q: %w", r.Do, err)
}

// Info asks who the helper is.
func (c *Client) Info(ctx context.Context) (Info, error) {
	a, err := c.do(ctx, Request{Do: OpInfo})
	if err == nil && a.Info == nil {
		err = incomplete(OpInfo)
	}
	if err != nil {
		return Info{}, err
	}
	return *a.Info, nil
}

// Flows asks for the flows of the moment.
func (c *Client) Flows(ctx context.Context) ([]Flow, error) {
	a, err := c.do(ctx, Request{Do: OpFlows})
	return a.Flows, err
}

// Stats asks for the counters.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	a, err := c.do(ctx, Request{Do: OpStats})
	if err == nil && a.Stats == nil {
		err = incomplete(OpStats)
	}
	if err != nil {
		return Stats{}, err
	}
	return *a.Stats, nil
}

// Forwards asks for the open ports.
func (c *Client) Forwards(ctx context.Context) ([]Forward, error) {
	a, err := c.do(ctx, Request{Do: OpForwards})
	return a.Forwards, err
}

// AddForward opens a port; the result says what it listens on.
func (c *Client) AddForward(ctx context.Context, f Forward) (Forward, error) {
	a, err := c.do(ctx, Request{Do: OpForwardAdd, Forward: &f})
	if err == nil && len(a.Forwards) != 1 {
		err = incomplete(OpForwardAdd)
	}
	if err != nil {
		return Forward{}, err
	}
	return a.Forwards[0], nil
}

// RemoveForward closes a port.
func (c *Client) RemoveForward(ctx context.Context, f Forward) error {
	_, err := c.do(ctx, Request{Do: OpForwardRemove, Forward: &f})
	return err
}

// Policy asks for the policy in force.
func (c *Client) Policy(ctx context.Context) (string, error) {
	a, err := c.do(ctx, Request{Do: OpPolicy})
	if err == nil && a.Policy == nil {
		err = incomplete(OpPolicy)
	}
	if err != nil {
		return "", err
	}
	return *a.Policy, nil
}

// SetPolicy replaces the policy for flows that begin from now on.
func (c *Client) SetPolicy(ctx context.Context, text string) error {
	_, err := c.do(ctx, Request{Do: OpPolicySet, Policy: &text})
	return err
}

// Stop ends the helper. The command inside lives on without a network where it
// is not the helper's own.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.do(ctx, Request{Do: OpStop})
	return err
}

func incomplete(op Op) error { return fmt.Errorf("read the helper's answer to %q: it is empty", op) }
