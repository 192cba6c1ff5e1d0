package localsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"cleat/internal/sys/systest"

	"github.com/google/go-cmp/cmp"
)

// own is a socket that no other test of the machine has.
func own(t *testing.T) Socket {
	return Kind("cleat-test").Own(fmt.Sprintf("%d-%s", os.Getpid(), t.Name()))
}

func TestListenDialAndList(t *testing.T) {
	s := own(t)
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Listen(); !errors.Is(err, ErrTaken) {
		t.Errorf("listen again: %v, want ErrTaken", err)
	}
	c, err := s.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if uid, err := PeerUID(c); err != nil || uid != os.Getuid() {
		t.Errorf("peer is user %d, %v; want %d", uid, err, os.Getuid())
	}
	if all, err := s.Kind.List(); err != nil || !slices.Contains(all, s) {
		t.Errorf("list: %v, %v; want %v among them", all, err, s)
	}
	l.Close()
	if all, err := s.Kind.List(); err != nil || slices.Contains(all, s) {
		t.Errorf("list after the end: %v, %v", all, err)
	}
	if _, err := s.Dial(t.Context()); err == nil {
		t.Error("connected to nobody")
	}
	if l, err = s.Listen(); err != nil {
		t.Fatalf("listen after the first has closed: %v", err)
	}
	l.Close()
}

// Who takes another user's name is not believed.
func TestDialTrustsTheNamesUserAlone(t *testing.T) {
	s := own(t)
	s.UID++
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = s.Dial(t.Context())
	if want := fmt.Sprintf("trust %s: it belongs to user %d", s, os.Getuid()); err == nil || err.Error() != want {
		t.Errorf("dial: %v, want %s", err, want)
	}
}

func TestAdmits(t *testing.T) {
	for uid, want := range map[int]bool{0: true, os.Getuid(): true, os.Getuid() + 1: false, 65534: os.Getuid() == 65534} {
		if got := Admits(uid); got != want {
			t.Errorf("user %d: %t, want %t", uid, got, want)
		}
	}
}

func TestListenFile(t *testing.T) {
	at := filepath.Join(t.TempDir(), "socket")
	l, err := ListenFile(at)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(at)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", info.Mode(), err)
	}
	if c, err := DialFile(t.Context(), at); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	if _, err := ListenFile(at); !errors.Is(err, ErrTaken) {
		t.Errorf("listen again: %v, want ErrTaken", err)
	}
	l.SetUnlinkOnClose(false) // as if killed
	l.Close()
	if l, err = ListenFile(at); err != nil {
		t.Fatalf("listen where a killed program did: %v", err)
	}
	l.Close()
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if err := os.WriteFile(at, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenFile(at); !errors.Is(err, fs.ErrExist) {
		t.Errorf("listen over a file: %v, want ErrExist", err)
	}
	if text, err := os.ReadFile(at); err != nil || string(text) != "mine" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

func TestNameTooLong(t *testing.T) {
	s := own(t)
	s.Name = strings.Repeat("n", 200)
	if l, err := s.Listen(); err == nil {
		l.Close()
		t.Error("listens with a name of 200 bytes")
	} else if errors.Is(err, ErrTaken) || !errors.As(err, new(*net.OpError)) {
		t.Errorf("got %v", err)
	}
}

func TestParse(t *testing.T) {
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 20000 /run/systemd/private
0000000000000000: 00000002 00000000 00010000 0001 01 20001 @cleat/1000/web
0000000000000000: 00000003 00000000 00000000 0001 03 20002 @cleat/1000/web
0000000000000000: 00000002 00000000 00010000 0001 01 20003 @cleat/0/4711
0000000000000000: 00000002 00000000 00010000 0001 01 20004 @cleat/x/4711
0000000000000000: 00000002 00000000 00010000 0001 01 20005 @cleat/
0000000000000000: 00000003 00000000 00000000 0001 03 20006
0000000000000000: 00000002 00000000 00010000 0001 01 20007 @cleat/0/4711@@@
0000000000000000: 00000002 00000000 00010000 0001 01 20008 @cleat-tunnel/0/office
`
	for _, tt := range []struct {
		kind Kind
		want []Socket
	}{
		{"cleat", []Socket{{"cleat", 1000, "web"}, {"cleat", 0, "4711"}, {"cleat", 0, "4711@@@"}}},
		{"cleat-tunnel", []Socket{{"cleat-tunnel", 0, "office"}}},
	} {
		if d := cmp.Diff(tt.want, tt.kind.parse([]byte(table))); d != "" {
			t.Errorf("%s: -want +got:\n%s", tt.kind, d)
		}
	}
}

// A client does not trust a socket at which another user listens.
func TestDialFileTrustsTheUserAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can listen as another user")
	}
	dir, err := os.MkdirTemp("", "cleat-localsock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "socket")
	listening := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		if err := systest.SetThreadUser(1500); err != nil {
			listening <- err
			return
		}
		l, err := ListenFile(at)
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		listening <- err
	}()
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	if c, err := DialFile(t.Context(), at); err == nil {
		c.Close()
		t.Error("a socket of user 1500 is trusted")
	}
}
