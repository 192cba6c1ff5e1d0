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

// clientOf is the environment variable that makes the test binary a client of a helper.
const clientOf = "CLEAT_TEST_CLIENT_OF"

func TestMain(m *testing.M) {
	if ref := os.Getenv(clientOf); ref != "" {
		os.Exit(queryStats(ref))
	}
	os.Exit(lab.RunTests(m))
}

// queryStats gets the counters of a helper and returns the exit code.
func queryStats(ref string) int {
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

// A process in another network namespace can't connect to an abstract socket. It can connect
// to a socket with a path, but the server rejects it.
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
		go s.Serve(t.Context(), target{}) // until the test's context ends
	}
	for _, tt := range []struct {
		name, ref, want string
		start           func(*exec.Cmd) error
	}{
		{"same, by path", path, "", (*exec.Cmd).Start},
		{"same, by name", "guest-test", "", (*exec.Cmd).Start},
		{"other, by path", path, "another network namespace may not control", ns.Start},
		{"other, by name", "guest-test", "no such instance is running", ns.Start},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			cmd := exec.Command(lab.Self)
			cmd.Env = append(os.Environ(), clientOf+"="+tt.ref)
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := tt.start(cmd); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			if (err == nil) != (tt.want == "") || !strings.Contains(out.String(), tt.want) {
				t.Errorf("%v, output %q, want %q", err, out.String(), tt.want)
			}
		})
	}
}

// target is a Target that supports only Stats.
type target struct{ control.Target }

func (target) Stats() control.Stats { return control.Stats{} }
