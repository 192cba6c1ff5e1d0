package ask

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// zeroed is a command line as /proc has it.
func zeroed(words ...string) []byte { return []byte(strings.Join(words, "\x00") + "\x00") }

func TestRequest(t *testing.T) {
	args := []string{"attach", "web", "", "--ip", "192.0.2.10/24"}
	env := zeroed("HOMER=x", "HOME=/root", "DOCKER_HOST=", "OVS_PKGDATADIR=/usr/share", "OVS_PKGDATADIR=/later")
	r, ok := Decode(encoded(zeroed(args...), env))
	if !ok || !slices.Equal(r.Args, args) {
		t.Errorf("arguments %q, %t, want %q", r.Args, ok, args)
	}
	if want := map[string]string{"HOME": "/root", "OVS_PKGDATADIR": "/usr/share"}; !maps.Equal(r.Env, want) {
		t.Errorf("variables %v, want %v", r.Env, want)
	}
}

// encoded is a request.
func encoded(args, env []byte) []byte {
	packet := make([]byte, MaxPacket)
	return packet[:request(packet, args, env)]
}

// What does not fit is not asked for.
func TestTooLong(t *testing.T) {
	long := strings.Repeat("x", MaxPacket)
	for name, packet := range map[string][]byte{
		"argument": encoded(zeroed("attach", long), nil),
		"variable": encoded(zeroed("attach", "web"), zeroed("HOME="+long)),
	} {
		if len(packet) > 0 {
			t.Errorf("%s: %d bytes", name, len(packet))
		}
	}
}

// As little is it if the socket's path is longer than an address has room for.
func TestAddress(t *testing.T) {
	for dir, want := range map[string]int{
		"":                        len(defaultDir),
		"/d":                      2,
		strings.Repeat("x", 93):   93,
		strings.Repeat("x", 94):   0,
		strings.Repeat("x", 1000): 0,
	} {
		var a address
		size := a.set(zeroed(stateEnv + "=" + dir))
		if want != 0 {
			want += len("..") + len("/"+SocketName) + len("\x00")
		}
		if size != want {
			t.Errorf("%d bytes in %q: %d, want %d", len(dir), dir, size, want)
		}
	}
}

// Another program's name may stand for another program.
func TestArguments(t *testing.T) {
	for name, want := range map[string]string{"cleat": "attach\x00", "/usr/bin/cleat": "attach\x00", "./cleat": "attach\x00", "concleat": "", "cleat2": "", "": ""} {
		if got := arguments(zeroed(name, "attach")); string(got) != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestNoRequest(t *testing.T) {
	for name, packet := range map[string][]byte{
		"nothing":         nil,
		"no end":          []byte("attach"),
		"variables alone": bytes.Repeat([]byte{0}, len(Vars)),
	} {
		if r, ok := Decode(packet); ok {
			t.Errorf("%s is %v", name, r)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encoded(zeroed("attach", "web"), nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, packet []byte) {
		if r, ok := Decode(packet); ok && len(r.Args) == 0 {
			t.Errorf("no command in %q", packet)
		}
	})
}

func TestForKeeper(t *testing.T) {
	for line, want := range map[string]bool{"attach": true, "attach web": true, "detach web eth0": true, "attac": false, "": false, "keep": false} {
		if got := forKeeper(zeroed(strings.Fields(line)...)); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}

// Packages that this one needs are initialised before it, and what they need.
func TestNeedsNothing(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no program go")
	}
	cmd := exec.Command(goTool, "list", "-f", `{{join .Imports " "}}`, ".")
	cmd.Env = os.Environ()
	if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != "syscall unsafe" {
		t.Errorf("it imports %s (%v), want syscall and unsafe alone", out, err)
	}
}
