package keep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"cleat/internal/ask"
	"cleat/internal/localsock"
)

// Bounds of askers, who may hang or be stopped.
const (
	askersMost = 64              // served at the same time; others do their work themselves
	askWithin  = time.Second     // until the request is there, which is sent at once
	sayWithin  = 5 * time.Second // until a packet of an answer is taken
)

// answerer does what others ask for (package ask).
type answerer struct {
	k    *keeper
	here surroundings
	busy sync.WaitGroup
}

// answer listens for askers until ctx ends; what is being done then is undone.
func (k *keeper) answer(ctx context.Context, heard *sync.WaitGroup) error {
	here, err := surroundingsOf(0)
	if err != nil {
		return err
	}
	path := filepath.Join(k.Attach.Store.Dir(), ask.SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of a keeper that was killed: the lock is ours
		return fmt.Errorf("listen for commands: %w", err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("listen for commands: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return fmt.Errorf("listen for commands: %w", err)
	}
	a := &answerer{k: k, here: here}
	heard.Go(func() {
		defer a.busy.Wait()
		defer context.AfterFunc(ctx, func() { l.Close() })()
		for {
			conn, err := localsock.Accept(ctx, l.AcceptUnix)
			if err != nil {
				if ctx.Err() == nil {
					k.woken.note("commands are not answered any more: %v", err)
				}
				l.Close()
				return
			}
			if k.answering.Load() >= askersMost {
				conn.Close()
				continue
			}
			k.answering.Add(1)
			a.busy.Go(func() {
				a.serve(ctx, conn)
				conn.Close()
				k.answering.Add(-1)
				k.woken.add(func(*happenings) {}) // there may be nothing left to be kept
			})
		}
	})
	return nil
}

// serve does what one asker wants, unless that is not like us.
func (a *answerer) serve(ctx context.Context, asker *net.UnixConn) {
	conn := patientConn{asker}
	packet := make([]byte, 64<<10)
	conn.SetReadDeadline(time.Now().Add(askWithin))
	n, err := conn.Read(packet)
	if err != nil {
		return
	}
	conn.SetReadDeadline(time.Time{})
	r, ok := ask.Decode(packet[:n])
	if !ok || n == len(packet) || !a.here.alike(asker, r.Args) { // one that fills it may be longer
		reply(conn, ask.Declined, nil)
		return
	}
	if reply(conn, ask.Begun, nil) != nil {
		return
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // until the asker's end, or ours
		for {
			if _, err := conn.Read(packet); err != nil {
				stop(errAskerGone)
				return
			}
		}
	}()
	var out, errs bytes.Buffer
	var code int
	var done bool
	err = a.k.host.Do(func() error { code, done = a.k.Answer(ctx, r, &out, &errs, &a.busy); return nil })
	if err != nil || !done || code != 0 && ctx.Err() != nil { // undone
		reply(conn, ask.Declined, nil)
		return
	}
	defer a.k.woken.note("%s, as asked: exit code %d", r.Args[0], code)
	if last := ask.MaxPacket - 2; out.Len() > last {
		say(conn, ask.Out, out.Next(out.Len()-last))
	}
	if say(conn, ask.Err, errs.Bytes()) == nil {
		reply(conn, ask.Exit, append([]byte{byte(code)}, out.Bytes()...))
	}
}

// patientConn is an asker's connection on which a write fails that takes too long.
type patientConn struct{ *net.UnixConn }

func (c patientConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(sayWithin)); err != nil {
		return 0, err
	}
	return c.UnixConn.Write(b)
}

// errAskerGone is why a command ends whose asker has.
var errAskerGone = errors.New("the process that asked for it has ended")

// say sends text in as many packets as it takes.
func say(conn io.Writer, kind byte, text []byte) error {
	for len(text) > 0 {
		n := min(len(text), ask.MaxPacket-1)
		if err := reply(conn, kind, text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

func reply(conn io.Writer, kind byte, text []byte) error {
	_, err := conn.Write(append([]byte{kind}, text...))
	return err
}
