package find

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"cleat/internal/columns"
	"cleat/internal/localsock"

	"golang.org/x/sys/unix"
)

// api is an engine that speaks Docker's HTTP API on a local socket: Docker, or Podman's
// service.
type api struct {
	m      *machine
	engine string
	socket string
	owner  int  // uid of the user to whom the socket's directory belongs
	chosen bool // the user chose the socket, so whoever listens there is trusted
}

// Limits of answers in bytes. 10,000 containers take about 20 MB.
const (
	bodyMax    = 64 << 20
	messageMax = 4 << 10 // of an error message
)

const atOnce = 8

// listed is a container in the answer to GET /containers/json.
type listed struct {
	ID         string `json:"Id"`
	Names      []string
	State      string
	HostConfig struct{ NetworkMode string }
}

// inspected is the answer to GET /containers/ID/json.
type inspected struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Status  string
		Running bool
		Pid     int
	}
	HostConfig struct{ NetworkMode string }
}

type statusError struct {
	code    int
	Message string `json:"message"`
}

func (e *statusError) Error() string {
	return fmt.Sprintf("it answers %d %s: %s", e.code, http.StatusText(e.code), e.Message)
}

func (a api) search(ctx context.Context, word string) ([]*candidate, error) {
	c, err := a.talk(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no %s", errAbsent, a.socket)
	}
	if err != nil {
		return nil, err
	}
	defer c.client.CloseIdleConnections()
	if word != "" {
		k, err := c.inspect(ctx, word)
		var status *statusError
		switch {
		case err == nil:
			return c.withSharer(ctx, k), nil
		case errors.As(err, &status) && status.code == http.StatusNotFound:
			return nil, nil
		case !errors.As(err, &status):
			return nil, err
		}
		// Engines report an ambiguous id prefix in many ways.
		several, _ := c.list(ctx, word)
		if len(several) < 2 {
			return nil, err
		}
		return several, nil
	}
	return c.list(ctx, "")
}

// withSharer returns a container and the one whose network it shares.
func (c conversation) withSharer(ctx context.Context, k *candidate) []*candidate {
	if k.sharedID == "" {
		return []*candidate{k}
	}
	with, err := c.inspect(ctx, k.sharedID)
	if err != nil {
		return []*candidate{k} // it is still known by its id
	}
	return []*candidate{k, with}
}

// conversation is a connection to one engine of the user api.owner.
type conversation struct {
	api
	client *http.Client
}

// talk determines the engine's user from the listener's credentials. The name of the
// directory and the owner of the file do not prove it.
func (a api) talk(ctx context.Context) (conversation, error) {
	first, owner, err := a.dial(ctx)
	if err != nil {
		return conversation{}, a.explain(ctx, err)
	}
	a.owner = owner
	once := make(chan net.Conn, 1)
	once <- first
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case conn := <-once:
			return conn, nil
		default:
		}
		conn, again, err := a.dial(ctx)
		if err == nil && again != owner {
			conn.Close()
			err = errForeign
		}
		return conn, err
	}
	return conversation{a, &http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// dial connects to the engine and returns its user.
func (a api) dial(ctx context.Context) (net.Conn, int, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", a.m.path(a.socket))
	if err != nil {
		return nil, 0, err
	}
	uid, err := localsock.PeerUID(conn.(*net.UnixConn))
	if uid = a.m.asRoot(uid); err == nil && uid != a.owner && !a.chosen {
		err = fmt.Errorf("connect to %s: %w", a.socket, errForeign)
	}
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, uid, nil
}

func (c conversation) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.m.timeout, silent(c.m.timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine"+path, nil)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return c.explain(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		status := &statusError{code: resp.StatusCode}
		_ = json.NewDecoder(io.LimitReader(resp.Body, messageMax)).Decode(status) // a message is optional
		return status
	}
	most := int64(bodyMax)
	if c.owner != 0 && c.owner != c.m.uid {
		most = othersMax
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(into); err != nil {
		return c.explain(ctx, fmt.Errorf("read its answer: %w", err))
	}
	return nil
}

// explain reduces an error on the way to the engine to its cause.
func (a api) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var inURL *url.Error
	if errors.As(err, &inURL) {
		err = inURL.Err
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("nobody listens at %s: %w", a.socket, err)
	}
	return err
}

// inspect queries one container by name, id, or prefix of an id.
func (c conversation) inspect(ctx context.Context, word string) (*candidate, error) {
	var i inspected
	if err := c.get(ctx, "/containers/"+url.PathEscape(word)+"/json", &i); err != nil {
		return nil, err
	}
	k := c.candidate(i.ID, i.Name, i.HostConfig.NetworkMode)
	if !i.State.Running || i.State.Pid == 0 {
		k.state = i.State.Status
		if k.state == "" || k.state == "running" {
			k.state = "stopped"
		}
		return k, nil
	}
	k.PID = i.State.Pid
	if !c.m.vouched(k.PID, k.ID) {
		return nil, fmt.Errorf("the engine says that %s is process %d, which is another process here: the engine is on another machine or in another PID namespace", k, k.PID)
	}
	if !c.m.complete(k) {
		k.state = cmp.Or(k.state, "exited") // it ended meanwhile
	}
	return k, nil
}

// list queries all containers whose ids have a prefix, and inspects each running one,
// because lists have no process ids.
func (c conversation) list(ctx context.Context, begin string) ([]*candidate, error) {
	var all []listed
	if err := c.get(ctx, "/containers/json?all=1", &all); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(l listed) bool { return !strings.HasPrefix(l.ID, begin) })
	all = all[:min(len(all), containerMax)]
	var (
		found   = make([]*candidate, len(all))
		errs    = make([]error, len(all))
		running sync.WaitGroup
		places  = make(chan struct{}, atOnce)
	)
	for i, l := range all {
		name := ""
		if len(l.Names) > 0 {
			name = l.Names[0]
		}
		found[i] = c.candidate(l.ID, name, l.HostConfig.NetworkMode)
		if found[i].state = cmp.Or(l.State, "unknown"); l.State != "running" && l.State != "paused" {
			continue
		}
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			k, err := c.inspect(ctx, l.ID)
			var status *statusError
			switch {
			case err == nil:
				found[i] = k
			case errors.As(err, &status) && status.code == http.StatusNotFound:
				found[i].state = "exited" // removed meanwhile
			default:
				found[i].state, errs[i] = "unknown", err
			}
		})
	}
	running.Wait()
	return found, cmp.Or(errs...) // a failing engine fails the same way each time
}

func (c conversation) candidate(id, name, network string) *candidate {
	k := &candidate{Found: Found{Engine: c.engine, ID: id, Name: strings.TrimPrefix(name, "/"),
		Space: c.m.userName(c.owner), Owner: c.owner}, chosen: c.chosen}
	k.hostMode = network == "host"
	if of, found := strings.CutPrefix(network, "container:"); found {
		k.sharedID = of
	}
	k.remedy = c.engine + " start " + columns.Word(k.label())
	return k
}
