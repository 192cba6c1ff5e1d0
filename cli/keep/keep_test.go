package keep

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// The service manager hears that we are ready, while we wait for another keeper, too.
func TestTellSystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	for waiting, want := range map[bool]string{
		true:  "READY=1\nSTATUS=waits for the end of another keeper\n",
		false: "READY=1\nSTATUS=keeps what is attached\n",
	} {
		notifySystemd(waiting)
		buf := make([]byte, 200)
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("waiting %t: %q, %v", waiting, buf[:n], err)
		}
	}
	t.Setenv("NOTIFY_SOCKET", path+".gone")
	notifySystemd(false) // nobody is there
}

// A unit's command line has a path as it is.
func TestUnitWord(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/bin/cleat": "/usr/bin/cleat", "/opt/my tools/cleat": `"/opt/my tools/cleat"`, "/opt/100%/$x": "/opt/100%%/$$x",
	} {
		if got := unitWord(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
