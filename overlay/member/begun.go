package member

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
)

// begun is a connection of this member to another one, whose beginning can be looked at before it is read.
type begun struct {
	net.Conn
	from *bufio.Reader
}

// Read implements net.Conn.
func (c *begun) Read(b []byte) (int, error) { return c.from.Read(b) }

// isProbe reports whether the connection begins with the request by which etcd's members ask each other every few seconds
// whether they are there. It waits for the first bytes, which clients send at once.
func (c *begun) isProbe() (bool, error) {
	want := []byte(http.MethodGet + " " + rafthttp.ProbingPrefix + " ")
	got, err := c.from.Peek(len(want)) // all requests are longer
	return bytes.Equal(got, want), err
}

// answerProbe answers in the other member's place (probing.Health in github.com/xiang90/probing). etcd only logs and
// counts what it learns from these requests. It makes a connection for each, because it closes those over Unix sockets
// after a microsecond without a request: two TLS handshakes every four seconds with each other member.
func (c *begun) answerProbe() error {
	if _, err := http.ReadRequest(c.from); err != nil {
		return err
	}
	body, err := json.Marshal(struct {
		OK  bool
		Now time.Time
	}{true, time.Now()})
	if err != nil {
		return err
	}
	r := http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)), Close: true}
	return r.Write(c.Conn)
}
