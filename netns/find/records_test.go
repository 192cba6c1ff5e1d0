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
	"testing"

	"cleat/netns"
)

// fakeRecords answers as containerd does, of containers without a task in namespaces.
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
		for _, name := range names { // with a label, which is no name, and a number
			one := slices.Concat(text(1, []byte(name)), text(2, text(1, []byte("label"))), []byte{9 << 3, 0x80, 0x01})
			message = append(message, text(1, one)...)
		}
		w.Header().Set("Trailer", "Grpc-Status")
		w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...))
		w.Header().Set("Grpc-Status", status)
	})}
	s.Protocols.SetUnencryptedHTTP2(true)
	go s.Serve(l) // ends with an error when it is closed
	tr.t.Cleanup(func() { s.Close() })
	return asked
}

// A container of containerd's without a task is not running, and what starts it is said.
func TestRecords(t *testing.T) {
	tr := newTree(t)
	tr.write("/run/containerd"+taskDir+"/default/running/init.pid", "7")
	asked := tr.fakeRecords("0", map[string][]string{"default": {"shop.1"}, mobySpace: {"shop.2"}})
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

// Where it does not answer, its files count.
func TestRecordsRefused(t *testing.T) {
	tr := newTree(t)
	tr.write("/run/containerd"+taskDir+"/default/running/init.pid", "7")
	tr.fakeRecords("7", map[string][]string{"default": {"shop"}})
	if _, err := tr.container(t.Context(), "shop"); !errors.Is(err, netns.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// Messages that end in the middle, or are none, are read up to there.
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
