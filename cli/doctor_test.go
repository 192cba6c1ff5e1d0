package cli

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cleat/cli/exit"
	"cleat/internal/program"
	"cleat/network/trace"
)

// pathStory creates a veth pair between two namespaces, with a smaller MTU at the far
// end, and runs the program's arguments as `cleat doctor HERE THERE`.
const pathStory = `set -e
unshare --net sleep 60 & there=$!
# The child is in its own namespace once that differs from ours.
until [ "$(readlink /proc/$there/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do :; done
ip link set lo up
ip link add eth0 mtu 9000 type veth peer name eth1 mtu 1500 netns $there
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
nsenter --target $there --net ip addr add 192.0.2.2/24 dev eth1
nsenter --target $there --net ip link set eth1 up
exec cleat doctor $$ $there "$@"
`

// TestDoctorPath runs the command in its own user and network namespaces.
func TestDoctorPath(t *testing.T) {
	needPrograms(t, "unshare", "nsenter", "ip")
	namespaces := []string{"--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if out, err := exec.Command("unshare", append(namespaces, "true")...).CombinedOutput(); err != nil {
		t.Skipf("no user namespaces here: %s", out)
	}
	run := func(t *testing.T, args ...string) (stdout, stderr string, code int) {
		t.Helper()
		cmd := exec.Command("unshare", append(append(namespaces, "sh", "-c", pathStory, "sh"), args...)...)
		cmd.Env = append(os.Environ(), "PATH="+binDir+string(filepath.ListSeparator)+program.SearchPath())
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}

	t.Run("text", func(t *testing.T) {
		stdout, stderr, code := run(t)
		if code != 0 || stderr != "" {
			t.Fatalf("exit %d, stderr %q", code, stderr)
		}
		for _, want := range []string{"(192.0.2.1) to ", "2 links; reaches the destination", "<- smallest", "back     over the same links"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%q is missing in:\n%s", want, stdout)
			}
		}
	})
	t.Run("json", func(t *testing.T) {
		stdout, stderr, code := run(t, "--json")
		var p trace.Path
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != 0 {
			t.Fatalf("exit %d, stderr %q: %v", code, stderr, err)
		}
		if p.MTU != 1500 || len(p.Hops) != 2 || !p.Complete {
			t.Errorf("path %+v", p)
		}
	})
	t.Run("strict", func(t *testing.T) {
		_, stderr, code := run(t, "--strict")
		if code != exit.Failed || !strings.Contains(stderr, "there is a problem on the way") {
			t.Errorf("exit %d, stderr %q", code, stderr)
		}
	})
}
