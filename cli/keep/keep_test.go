package keep

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// systemd is notified in either state, and its absence is no error.
func TestNotifySystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	for waiting, want := range map[bool]string{
		true:  "READY=1\nSTATUS=waits while another keeper runs\n",
		false: "READY=1\nSTATUS=keeps attachments\n",
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
	notifySystemd(false) // nobody listens
}

// systemd reads a quoted path as it is.
func TestUnitWord(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/bin/cleat": "/usr/bin/cleat", "/opt/my tools/cleat": `"/opt/my tools/cleat"`, "/opt/100%/$x": "/opt/100%%/$$x",
	} {
		if got := unitWord(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
