package names

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// say sends lines to a server and returns its answers.
func say(t *testing.T, path string, lines ...string) (answers []response) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	in := bufio.NewScanner(conn)
	for _, line := range lines {
		_, err := conn.Write([]byte(line + "\n"))
		must(t, err)
		var a response
		if !in.Scan() {
			t.Fatalf("no answer to %.80s: %v", line, in.Err())
		}
		must(t, json.Unmarshal(in.Bytes(), &a))
		answers = append(answers, a)
	}
	return answers
}

func TestRequests(t *testing.T) {
	needLoopback(t)
	c, path := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	for _, tt := range []struct {
		name, line, want string
		kind             Kind
	}{
		{"state", `{"version":1,"do":"state"}`, "", ""},
		{"not JSON", `hello`, "read request: invalid character", KindRequest},
		{"another version", `{"version":2,"do":"state"}`, "version 1 of the control protocol, not 2", KindVersion},
		{"no version", `{"do":"state"}`, "not 0", KindVersion},
		{"another version with unknown fields", `{"version":3,"verb":"x"}`, "not 3", KindVersion},
		{"unknown request", `{"version":1,"do":"dance"}`, `unknown request "dance"`, KindRequest},
		{"no request", `{"version":1}`, `unknown request ""`, KindRequest},
		{"unknown field", `{"version":1,"do":"state","colour":1}`, "unknown field", KindRequest},
		{"two objects", `{"version":1,"do":"state"}{}`, "read request", KindRequest},
		{"missing field", `{"version":1,"do":"set","name":"shop"}`, "lacks a field", KindRequest},
		{"unknown network", `{"version":1,"do":"set","name":"x","change":{}}`, `no such network: "x"`, KindNotFound},
		{"no descriptors", `{"version":1,"do":"serve","socket":{"id":"x","networks":["shop"]}}`, "got 0 descriptors", KindRequest},
		{"no ID", `{"version":1,"do":"serve","socket":{"id":"","networks":["shop"]}}`, "want an ID", KindRequest},
		{"wrong type", `{"version":1,"do":7}`, "read request", KindRequest},
		{"bad address", `{"version":1,"do":"set","name":"shop","change":{"set":[{"name":"a","addrs":["x"]}]}}`, "read request", KindRequest},
		{"bad endpoint", `{"version":1,"do":"set","name":"shop","change":{"set":[{"name":"a b"}]}}`, `endpoint "a b"`, KindRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := say(t, path, tt.line, `{"version":1,"do":"state"}`)
			got, kind := "", Kind("")
			if a[0].Error != nil {
				got, kind = a[0].Error.Message, a[0].Error.Kind
			}
			if !strings.Contains(got, tt.want) || (tt.want == "") != (got == "") || kind != tt.kind || a[0].Version != version {
				t.Errorf("got %s %q, want %s %q", kind, got, tt.kind, tt.want)
			}
			if a[1].State == nil { // the connection is still good
				t.Errorf("state afterwards: %+v", a[1])
			}
		})
	}
}

func TestLongLines(t *testing.T) {
	needLoopback(t)
	c, path := start(t, "")
	many := Network{Name: "many"}
	for i := range 20_000 {
		many.Endpoints = append(many.Endpoints, Endpoint{Name: fmt.Sprint("container-number-", i), Addrs: addrs("192.0.2.1", "2001:db8::1")})
	}
	must(t, c.Replace(t.Context(), many))
	n, err := c.Network(t.Context(), "many")
	must(t, err)
	if len(n.Endpoints) != len(many.Endpoints) {
		t.Errorf("%d endpoints", len(n.Endpoints))
	}
	conn, err := net.Dial("unix", path)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	go conn.Write([]byte(strings.Repeat("x", maxLine+1<<16)))
	var a response
	must(t, json.NewDecoder(conn).Decode(&a))
	if a.Error == nil || a.Error.Kind != KindRequest {
		t.Errorf("answer to an endless line: %+v", a)
	}
}

func TestDialWithoutServer(t *testing.T) {
	if _, err := Dial(t.Context(), filepath.Join(t.TempDir(), "nosuch")); !errors.Is(err, ErrNotRunning) {
		t.Errorf("got %v", err)
	}
}

// A server may end before it accepts a connection, before it reads a request, or before it answers.
func TestServerEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(net.Listener)
	}{
		{"before it accepts", func(l net.Listener) { l.Close() }},
		{"before it reads", func(l net.Listener) {
			c, err := l.Accept()
			must(t, err)
			c.Close()
		}},
		{"before it answers", func(l net.Listener) {
			c, err := l.Accept()
			must(t, err)
			_, err = bufio.NewReader(c).ReadString('\n')
			must(t, err)
			c.Close()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "socket")
			l, err := net.Listen("unix", path)
			must(t, err)
			defer l.Close()
			c, err := Dial(t.Context(), path)
			must(t, err)
			defer c.Close()
			go tt.end(l)
			if _, err := c.State(t.Context()); !errors.Is(err, ErrNotRunning) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A client is safe for concurrent use, and of no use after a request was interrupted.
func TestClient(t *testing.T) {
	needLoopback(t)
	c, _ := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			e := Endpoint{Name: fmt.Sprint("c", i)}
			if err := c.Set(t.Context(), "shop", Change{Set: []Endpoint{e}}); err != nil {
				t.Error(err)
			}
			if n, err := c.Network(t.Context(), "shop"); err != nil || n.Name != "shop" {
				t.Error(n.Name, err)
			}
		})
	}
	wg.Wait()
	n, err := c.Network(t.Context(), "shop")
	must(t, err)
	if len(n.Endpoints) != len(shop.Endpoints)+20 {
		t.Errorf("%d endpoints", len(n.Endpoints))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.State(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := c.State(t.Context()); err == nil {
		t.Error("an interrupted client goes on")
	}
}

// The server goes on when a controller has vanished in the middle of a request.
func TestControllerVanishes(t *testing.T) {
	needLoopback(t)
	c, path := start(t, "")
	must(t, c.Replace(t.Context(), shop))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
	conn, err := net.Dial("unix", path)
	must(t, err)
	_, err = conn.Write([]byte(`{"version":1,"do":"drop","name":"sh`))
	must(t, err)
	conn.Close()
	c.Close()
	if got := lookUp(t, gateway, "web", dnsmessage.TypeA); got != "Success, 192.0.2.10" {
		t.Error(got)
	}
	if _, err := dial(t, path).State(t.Context()); err != nil {
		t.Error(err)
	}
}
