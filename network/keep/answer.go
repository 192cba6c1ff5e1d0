package keep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"cleat/internal/localsock"
	"cleat/network/keep/client"
)

// Limits on clients, which may hang or be stopped.
const (
	maxClients     = 512             // others run their command themselves
	maxCommands    = 64              // that run at the same time
	requestTimeout = time.Second     // a client sends its request at once
	replyTimeout   = 5 * time.Second // for a client to take a reply
)

// serveClients accepts clients (client.Forward) until ctx ends. Commands that are running then are
// undone. The caller waits for the goroutines of group.
func (k *keeper) serveClients(ctx context.Context, group *sync.WaitGroup) error {
	own, err := processContextOf(0)
	if err != nil {
		return err
	}
	l, err := localsock.ListenFile(k.Attach.Store.Path(client.SocketName))
	if err != nil {
		return fmt.Errorf("listen for commands: %w", err)
	}
	group.Go(func() {
		var busy sync.WaitGroup // clients, and what their commands left running
		defer busy.Wait()
		defer context.AfterFunc(ctx, func() { l.Close() })()
		for {
			conn, err := localsock.Accept(ctx, l.AcceptUnix)
			if err != nil {
				if ctx.Err() == nil {
					k.events.logLater("commands are no longer served: %v", err)
				}
				l.Close()
				return
			}
			if k.clients.Load() >= maxClients {
				conn.Close()
				continue
			}
			k.clients.Add(1)
			busy.Go(func() {
				k.serve(ctx, conn, own, &busy)
				conn.Close()
				k.clients.Add(-1)
				k.events.add(func(*events) {}) // wakes the loop: there may be nothing left to keep
			})
		}
	})
	return nil
}

// serve runs the command of one client. It declines if the command could mean something
// else in this process's own context, and if the command was undone. busy gets what the
// command leaves running.
func (k *keeper) serve(ctx context.Context, conn *net.UnixConn, own processContext, busy *sync.WaitGroup) {
	conn.SetReadDeadline(time.Now().Add(requestTimeout))
	var r client.Request
	if err := json.NewDecoder(io.LimitReader(conn, client.MaxRequest)).Decode(&r); err != nil || len(r.Args) == 0 || !k.accepts(conn, own, r.Args) {
		send(conn, client.Reply{State: client.Declined})
		return
	}
	conn.SetReadDeadline(time.Time{})
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// Whoever can do the work himself waits for a reply only for a moment (beginWithin).
	exclusive := k.Exclusive != nil && k.Exclusive(r.Args)
	if exclusive && send(conn, client.Reply{State: client.Begun}) != nil {
		return
	}
	if k.Unlimited == nil || !k.Unlimited(r.Args) {
		select {
		case k.commands <- struct{}{}:
			defer func() { <-k.commands }()
		case <-ctx.Done(): // nothing was done, so the client can do it
			send(conn, client.Reply{State: client.Declined})
			return
		}
	}
	if !exclusive && send(conn, client.Reply{State: client.Begun}) != nil {
		return
	}
	go func() { // ends with the client, or when the caller closes conn
		io.Copy(io.Discard, conn)
		stop(errClientGone)
	}()
	var stdout, stderr bytes.Buffer
	var code int
	var handled bool
	err := k.host.Do(func() error { code, handled = k.Answer(ctx, r, &stdout, &stderr, busy); return nil })
	if err != nil || !handled || code != 0 && ctx.Err() != nil { // it was undone
		send(conn, client.Reply{State: client.Declined})
		return
	}
	if k.Quiet == nil || !k.Quiet(r.Args) {
		what := r.Args[0]
		if k.Contract != nil && k.Contract(r.Args) {
			what = strings.Join(r.Args, " ")
		}
		defer k.events.logLater("%s for a client: exit code %d", what, code)
	}
	send(conn, client.Reply{State: client.Done, Exit: code, Stdout: stdout.Bytes(), Stderr: stderr.Bytes()})
}

// accepts reports whether a client's command line means the same to this process.
func (k *keeper) accepts(conn *net.UnixConn, own processContext, args []string) bool {
	p, err := peerOf(conn)
	if err != nil {
		return false
	}
	defer p.close()
	switch {
	case k.Universal != nil && k.Universal(args):
		return true
	case k.Contract != nil && k.Contract(args):
		return p.sees(own)
	}
	return p.matches(own, args, k.Pathless != nil && k.Pathless(args))
}

// errClientGone is why a command is cancelled whose client has ended.
var errClientGone = errors.New("the client has ended")

func send(conn *net.UnixConn, r client.Reply) error {
	if err := conn.SetWriteDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	return json.NewEncoder(conn).Encode(r)
}
