package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cleat/network/keep/client"
)

// TestForward has a keeper that answers as a script says.
func TestForward(t *testing.T) {
	t.Setenv("HOME", "/nowhere")
	t.Setenv("DOCKER_HOST", "")
	long := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	done := func(code int, stdout, stderr []byte) string {
		b, err := json.Marshal(map[string]any{"state": "done", "exit": code, "stdout": stdout, "stderr": stderr})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const begun, declined = `{"state":"begun"}`, `{"state":"declined"}`
	for _, c := range []struct {
		name           string
		answers        []string
		code           int
		stdout, stderr string
		err            error
	}{
		{"done", []string{begun, done(0, []byte("a\x00\xffb\n"), nil)}, 0, "a\x00\xffb\n", "", nil},
		{"failed", []string{begun, done(2, nil, []byte("hint\nbad\n"))}, 2, "", "hint\nbad\n", nil},
		{"much output", []string{begun, done(0, long, long)}, 0, string(long), string(long), nil},
		{"declined", []string{declined}, 0, "", "", client.ErrDeclined},
		{"declined later", []string{begun, declined}, 0, "", "", client.ErrDeclined},
		{"closed", nil, 0, "", "", client.ErrDeclined},
		{"no JSON", []string{"\x1b]0;owned\a"}, 0, "", "", client.ErrDeclined},
		{"closed later", []string{begun}, 0, "", "", client.ErrLost},
		{"closed in the middle", []string{begun, done(0, nil, nil)[:9]}, 0, "", "", client.ErrLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			requests := answer(listen(t, dir), c.answers)
			args := []string{"attach", "web", "", "--ip", "192.0.2.10/24"}
			var stdout, stderr bytes.Buffer
			code, err := client.Forward(t.Context(), filepath.Join(dir, client.SocketName), client.NewRequest(args), &stdout, &stderr)
			if code != c.code || !errors.Is(err, c.err) || stdout.String() != c.stdout || stderr.String() != c.stderr {
				t.Errorf("exit code %d, %v, printed %.40q and %.40q", code, err, stdout.String(), stderr.String())
			}
			r := <-requests
			if _, set := r.Env["DOCKER_HOST"]; !slices.Equal(r.Args, args) || r.Env["HOME"] != "/nowhere" || set {
				t.Errorf("request %q, %v", r.Args, r.Env)
			}
		})
	}
}

// A command line is not forwarded if nobody listens, or if JSON would change it.
func TestForwardToNobody(t *testing.T) {
	dir := t.TempDir()
	if _, err := client.Forward(t.Context(), filepath.Join(dir, client.SocketName), client.NewRequest([]string{"attach"}), nil, nil); !errors.Is(err, client.ErrDeclined) {
		t.Errorf("nobody listens: %v", err)
	}
	requests := answer(listen(t, dir), []string{`{"state":"done"}`})
	if _, err := client.Forward(t.Context(), filepath.Join(dir, client.SocketName), client.NewRequest([]string{"attach", "\xff"}), nil, nil); !errors.Is(err, client.ErrDeclined) {
		t.Errorf("not UTF-8: %v", err)
	}
	if len(requests) > 0 {
		t.Error("it was forwarded")
	}
}

// A keeper that accepts no connection, as one that is stopped, is not waited for.
func TestForwardToSilence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	defer listen(t, dir).Close()
	if _, err := client.Forward(t.Context(), filepath.Join(dir, client.SocketName), client.NewRequest([]string{"attach"}), nil, nil); !errors.Is(err, client.ErrDeclined) {
		t.Error(err)
	}
}

// listen opens the socket of a keeper of dir.
func listen(t *testing.T, dir string) *net.UnixListener {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "keeper.socket"), Net: "unix"})
	if err != nil {
		t.Error(err)
	}
	return l
}

// answer reads one client's request and sends it the answers. The request is empty if the
// client sent none.
func answer(l *net.UnixListener, answers []string) <-chan client.Request {
	requests := make(chan client.Request, 1)
	go func() {
		conn, err := l.Accept()
		l.Close()
		if err != nil {
			return
		}
		defer conn.Close()
		var r client.Request
		err = json.NewDecoder(conn).Decode(&r)
		requests <- r
		if err == nil {
			conn.Write([]byte(strings.Join(answers, "\n")))
		}
	}()
	return requests
}
