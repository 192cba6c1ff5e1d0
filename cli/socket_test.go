package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/internal/program"
)

// TestSystemdSocket has the machine's systemd hold the socket of Docker's plug-in: the first request
// starts a keeper, and one that was killed or stopped delays a request by no more than its start.
func TestSystemdSocket(t *testing.T) {
	t.Parallel() // most of the time it waits
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	if os.Geteuid() != 0 {
		t.Skip("booting systemd needs root")
	}
	for _, p := range []string{"/lib/systemd/systemd", "systemctl", "unshare", "curl"} {
		if _, err := program.Find(p); err != nil {
			t.Skipf("no program %s", p)
		}
	}
	group := groupForSystemd(t)
	here, err := filepath.Abs("testdata/systemd")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "told")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(here, "host.sh"), group, filepath.Join(here, "socket.sh"), file)
	cmd.Env = append(os.Environ(), "PATH="+binDir+string(os.PathListSeparator)+program.SearchPath())
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	story, _ := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, story)
	}
	t.Logf("%s", story)
	told := map[string][]string{}
	for line := range strings.Lines(string(story)) {
		if about, what, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			told[about] = append(told[about], what)
		}
	}
	const implements = `{"Implements":["NetworkDriver","IpamDriver"]}`
	tells(t, told, "before", "active, inactive")
	tells(t, told, "first request", implements)
	tells(t, told, "by its socket", "active")
	tells(t, told, "killed", implements, "another one runs")
	tells(t, told, "stopped", "the socket stays", implements)
	tells(t, told, "boot", implements)
	if len(told["not so"]) > 0 {
		t.Errorf("not so: %q", told["not so"])
	}
}
