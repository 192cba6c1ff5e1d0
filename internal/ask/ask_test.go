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
	for _, name := range Vars {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", "/root")
	t.Setenv("OVS_PKGDATADIR", "/usr/share")
	args := []string{"attach", "web", "", "--ip", "192.0.2.10/24"}
	r, ok := Decode(request(zeroed(args...)))
	if !ok || !slices.Equal(r.Args, args) {
		t.Errorf("arguments %q, %t, want %q", r.Args, ok, args)
	}
	if want := map[string]string{"HOME": "/root", "OVS_PKGDATADIR": "/usr/share"}; !maps.Equal(r.Env, want) {
		t.Errorf("variables %v, want %v", r.Env, want)
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
	f.Add(request(zeroed("attach", "web")))
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
	if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != "syscall" {
		t.Errorf("it imports %s (%v), want syscall alone", out, err)
	}
}
