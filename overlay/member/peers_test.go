package member_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"cleat/overlay/member"
)

// TestProbes asks another member whether it is there, as etcd does: it gets the question if nothing else has connected
// to it, and is spared it otherwise.
func TestProbes(t *testing.T) {
	p := newPlace(t)
	arrived := make(chan net.Conn)
	m, err := member.Start(member.Config{Host: "a", Dir: p.path("data"), Sockets: p.dir, ID: "test", Log: t.Logf, Dial: func(ctx context.Context, host string) (net.Conn, error) {
		from, to := net.Pipe()
		select {
		case arrived <- to:
			return from, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}})
	must(t, err)
	defer m.Close()
	must(t, m.Link([]string{"b"}))
	send := func(request string) net.Conn {
		c, err := member.DialPeers(p.dir, "b")(t.Context())
		must(t, err)
		_, err = io.WriteString(c, request)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(5*time.Second)))
		return c
	}
	const probe = "GET /raft/probing HTTP/1.1\r\nHost: b\r\n\r\n"
	asks := func() (passed bool) {
		c := send(probe)
		defer c.Close()
		answered := make(chan string, 1)
		go func() {
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				answered <- err.Error()
				return
			}
			defer r.Body.Close()
			var health struct {
				OK  bool
				Now time.Time
			}
			if err := json.NewDecoder(r.Body).Decode(&health); err != nil || !health.OK || time.Since(health.Now).Abs() > time.Minute {
				t.Errorf("answer %+v, %v", health, err)
			}
			answered <- r.Status
		}()
		select {
		case to := <-arrived:
			defer to.Close()
			got := make([]byte, len(probe))
			if _, err := io.ReadFull(to, got); err != nil || string(got) != probe {
				t.Errorf("the other member gets %q, %v", got, err)
			}
			return true
		case answer := <-answered:
			if !strings.HasPrefix(answer, "200") {
				t.Errorf("the answer is %s", answer)
			}
			return false
		}
	}
	send("").Close() // which needs nobody
	if !asks() {
		t.Error("a member to which there is no connection was not asked")
	}
	other := send(probe)
	answers := <-arrived
	if !asks() {
		t.Error("a member to which only a question is on its way was not asked")
	}
	other.Close()
	answers.Close()
	stream := send("GET /raft/stream/message/1 HTTP/1.1\r\n\r\n")
	to := <-arrived
	if asks() {
		t.Error("a member to which there is a connection was asked")
	}
	stream.Close()
	if _, err := io.Copy(io.Discard, to); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	waitFor(t, "a question that arrives", asks)
}
