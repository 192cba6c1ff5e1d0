package control_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/netns"
	"cleat/sandbox/control"
)

// askAt in the environment makes the test binary a client.
const askAt = "CLEAT_TEST_ASK_AT"

func TestMain(m *testing.M) {
	if ref := os.Getenv(askAt); ref != "" {
		os.Exit(ask(ref))
	}
	os.Exit(lab.RunTests(m))
}

// ask asks the helper that ref means for its counters, as a process of its own.
func ask(ref string) int {
	c, err := control.Dial(context.Background(), ref)
	if err == nil {
		_, err = c.Stats(context.Background())
	}
	if err != nil {
		io.WriteString(os.Stdout, err.Error())
		return 1
	}
	return 0
}

// A socket with a path can be reached from the sandbox's network namespace,
// where the one without can't; but orders are taken from our own only.
func TestOtherNamespace(t *testing.T) {
	lab.Need(t)
	ns, err := netns.New("guest")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	path := filepath.Join(t.TempDir(), "control")
	atPath, err := control.ListenPath(path)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	atName, err := control.Listen("guest-test")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*control.Server{atPath, atName} {
		go s.Serve(t.Context(), target{}) // ends with the test's context
	}
	for _, tt := range []struct {
		name, ref, want string
		start           func(*exec.Cmd) error
	}{
		{"same, by path", path, "", (*exec.Cmd).Start},
		{"same, by name", "guest-test", "", (*exec.Cmd).Start},
		{"other, by path", path, "another network namespace may not control", ns.Start},
		{"other, by name", "guest-test", "no such helper is running", ns.Start},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			cmd := exec.Command(lab.Self)
			cmd.Env = append(os.Environ(), askAt+"="+tt.ref)
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := tt.start(cmd); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			if (err == nil) != (tt.want == "") || !strings.Contains(out.String(), tt.want) {
				t.Errorf("%v, %q; want %q", err, out.String(), tt.want)
			}
		})
	}
}

// target is a Target of which only Stats is asked.
type target struct{ control.Target }

func (target) Stats() control.Stats { return control.Stats{} }
