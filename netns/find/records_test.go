package find

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeRecords answers as containerd does, with containers without a task.
func (tr *tree) fakeRecords(status string, spaces map[string][]string) (asked *[]string) {
	tr.t.Helper()
	path := tr.path(containerdSocket)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		tr.t.Fatal(err)
	}
	asked = new([]string)
	s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		space := r.Header.Get("containerd-namespace")
		body, _ := io.ReadAll(r.Body)
		*asked = append(*asked, r.URL.Path+" "+space+" "+string(body[5:]))
		names := spaces[space]
		if space == "" {
			for name := range spaces {
				names = append(names, name)
			}
		}
		var message []byte
		text := func(field byte, value []byte) []byte {
			return append(binary.AppendUvarint([]byte{field<<3 | lengthPrefixed}, uint64(len(value))), value...)
		}
		for _, name := range names { // with a label and a number, which are not names
			one := slices.Concat(text(1, []byte(name)), text(2, text(1, []byte("label"))), []byte{9 << 3, 0x80, 0x01})
			message = append(message, text(1, one)...)
		}
		w.Header().Set("Trailer", "Grpc-Status")
		w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...))
		w.Header().Set("Grpc-Status", status)
	})}
	s.Protocols.SetUnencryptedHTTP2(true)
	go s.Serve(l) // returns an error when it is closed
	tr.t.Cleanup(func() { s.Close() })
	return asked
}

// A container of containerd without a task is not running, and the error names the
// command that starts it.
func TestRecords(t *testing.T) {
	tr := newTree(t)
	tr.write("/run/containerd"+taskDir+"/default/running/init.pid", "7")
	asked := tr.fakeRecords("0", map[string][]string{"default": {"shop.1"}, dockersSpace: {"shop.2"}})
	var idle *NotRunning
	if _, err := tr.container(t.Context(), "shop.1"); !errors.As(err, &idle) || idle.Hint() != "start it: ctr --namespace default tasks start --detach shop.1" ||
		err.Error() != `containerd container "shop.1" in namespace "default" is not running: it has no task` {
		t.Errorf("got %v", err)
	}
	want := []string{"/containerd.services.namespaces.v1.Namespaces/List  ", "/containerd.services.containers.v1.Containers/List default \n\x0fid~=\"^shop\\\\.1\""}
	if !slices.Equal(*asked, want) {
		t.Errorf("asked %q, want %q", *asked, want)
	}
	*asked = nil
	if _, err := tr.container(t.Context(), "running"); !errors.As(err, &idle) || len(*asked) > 0 {
		t.Errorf("what has a task is asked for: %q, %v", *asked, err)
	}
}

// If containerd refuses, its files count, and the refusal is reported.
func TestRecordsRefused(t *testing.T) {
	tr := newTree(t)
	tr.write("/run/containerd"+taskDir+"/default/running/init.pid", "7")
	tr.fakeRecords("7", map[string][]string{"default": {"shop"}})
	var missing *NotFound
	if _, err := tr.container(t.Context(), "shop"); !errors.As(err, &missing) || !strings.Contains(missing.Hint(), `not asked: containerd: ask containerd.services.namespaces.v1.Namespaces: HTTP status 200 OK, gRPC status "7"`) {
		t.Errorf("got %v", err)
	}
}

// A containerd that accepts and never answers costs one request timeout, once, and only
// if nothing else matches; that is reported.
func TestRecordsHang(t *testing.T) {
	tr := newTree(t)
	tr.timeout = 50 * time.Millisecond
	tr.conmon(20, 0, id("ab"), "web", 120)
	path := tr.path(containerdSocket)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan struct{}, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			accepted <- struct{}{}
		}
	}()
	if got, err := tr.container(t.Context(), "web"); err != nil || got.Engine != Podman || len(accepted) > 0 {
		t.Errorf("what runs: %v, %v, asked %d times", got, err, len(accepted))
	}
	begun := time.Now()
	var missing *NotFound
	if _, err := tr.container(t.Context(), "shop"); !errors.As(err, &missing) || !strings.Contains(missing.Hint(), "not asked: containerd: no answer within 50ms") || len(accepted) != 1 {
		t.Errorf("what nobody has: %v, asked %d times", err, len(accepted))
	}
	var unasked *Unasked
	if _, err := tr.container(t.Context(), "containerd:shop"); !errors.As(err, &unasked) || err.Error() != "ask containerd for containers: no answer within 50ms" {
		t.Errorf("what is to be containerd's: %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// A container without a task is not confused with a running one of the same name in
// another namespace; the hint names the latter.
func TestRecordsElsewhere(t *testing.T) {
	tr := newTree(t)
	tr.proc(7, proc{comm: "shop", uid: 0, nspid: "7 1", net: 4026532007, cgroup: "0::/default/shop"})
	tr.write("/run/containerd"+taskDir+"/default/shop/init.pid", "7")
	tr.fakeRecords("0", map[string][]string{"default": {"shop"}, "k8s.io": {"shop"}})
	var idle *NotRunning
	if _, err := tr.container(t.Context(), "containerd:k8s.io/shop"); !errors.As(err, &idle) || idle.Found.Space != "k8s.io" ||
		idle.Hint() != "start it: ctr --namespace k8s.io tasks start --detach shop\nrunning under that name: containerd:default/shop" {
		t.Errorf("got %v", err)
	}
	if got, err := tr.container(t.Context(), "shop"); err != nil || got.Space != "default" {
		t.Errorf("without a namespace: %v, %v", got, err)
	}
	var missing *NotFound
	if _, err := tr.container(t.Context(), "containerd:other/shop"); !errors.As(err, &missing) || !strings.Contains(missing.Hint(), "containerd:default/shop") {
		t.Errorf("in one that has none: %v", err)
	}
}

// Truncated and invalid messages are parsed up to the error.
func TestFieldOne(t *testing.T) {
	whole := []byte{1<<3 | lengthPrefixed, 1, 'a', 2<<3 | 5, 1, 2, 3, 4, 3<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8, 1<<3 | lengthPrefixed, 2, 'b', 'c'}
	for n := range len(whole) + 1 {
		want := 0
		if n >= 3 {
			want++
		}
		if n == len(whole) {
			want++
		}
		if got := fieldOne(whole[:n]); len(got) != want {
			t.Errorf("of %d bytes: %q", n, got)
		}
	}
	for _, bad := range []string{"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a", "\x0b", "\xff", "\x08\xff"} {
		if got := fieldOne([]byte(bad)); len(got) > 0 {
			t.Errorf("%q: %q", bad, got)
		}
	}
}
