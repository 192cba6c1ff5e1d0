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

	"golang.org/x/sys/unix"
)

// systemdGroup begins the names of control groups in which a systemd runs.
const systemdGroup = "cleat-systemd-"

// groupForSystemd creates a control group of version 2, or skips the test with the
// reason.
func groupForSystemd(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		group, err := os.MkdirTemp(dir, systemdGroup)
		if err != nil {
			t.Skipf("no control group: %v", err)
		}
		t.Cleanup(func() { removeEngineGroups(t, filepath.Base(group)) })
		return group
	}
	t.Skip("no control groups of version 2")
	return ""
}

// TestSystemd runs keepers under the machine's systemd. Those that attach starts outlive
// the service that attached, and leave nothing. The unit starts at boot, is ready when
// everything is kept, is restarted when it is killed, and stops cleanly.
func TestSystemd(t *testing.T) {
	t.Parallel() // most of the time it waits
	told := bootSystemd(t, "keep.sh")
	tells(t, told, "on demand", "a service of its own", "attached again", "killed, nothing is left")
	const keeps = "active, keeps attachments"
	tells(t, told, "unit", "enabled enabled", "active, waits while another keeper runs", keeps, "it is the keeper", "attached again")
	tells(t, told, "restarted", keeps, "attached again")
	tells(t, told, "killed", keeps, "attached again")
	tells(t, told, "stopped", "inactive, success, 143", "what is attached stays", "no keeper runs")
	tells(t, told, "journal", "cleat: netns.web.eth0: attached again: the container had restarted")
	tells(t, told, "before", "note: no keeper starts at boot: `cleat keep --install` has networks back then")
	const boot, request = "a keeper starts at boot: ", "Docker's requests start one: "
	tells(t, told, "shipped", boot+"/usr/local/lib/systemd/system/cleat-keep.service", request+"/usr/local/lib/systemd/system/cleat-keep.socket",
		"enabled enabled, active", "no second units", "disabled disabled, inactive", "no keeper is installed")
	tells(t, told, "installed", boot+"/etc/systemd/system/cleat-keep.service", request+"/etc/systemd/system/cleat-keep.socket")
	tells(t, told, "after", "network boot driver bridge 10.30.0.0/24", "web is on boot: eth1 10.30.0.2, name web")
	tells(t, told, "second start", keeps, "attached again", "networks are back", "web 10.30.0.2 attached")
	tells(t, told, "down", "1 network and 2 links are down; `cleat keep` brings back what it keeps", "nothing is left in the kernel",
		"the next keeper brought it back")
	tells(t, told, "idle", "success", "success, after another start")
	tells(t, told, "uninstalled", "the units are gone", "no keeper runs")
}

// bootSystemd boots the machine's systemd twice in namespaces (host.sh). A service runs a script of
// testdata/systemd. bootSystemd returns what the script says, by the word before the colon.
func bootSystemd(t *testing.T, script string, files ...string) map[string][]string {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	if os.Geteuid() != 0 {
		t.Skip("booting systemd needs root")
	}
	needPrograms(t, "/lib/systemd/systemd", "systemctl", "systemd-run", "journalctl", "unshare", "ip")
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
	cmd := exec.CommandContext(ctx, filepath.Join(here, "host.sh"), append([]string{group, filepath.Join(here, script), file}, files...)...)
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
	if len(told["not so"]) > 0 {
		t.Errorf("not so: %q", told["not so"])
	}
	return told
}

// TestSystemdPackage installs, removes and purges the Debian package under systemd. `make test-deb`
// runs it.
func TestSystemdPackage(t *testing.T) {
	deb := os.Getenv("CLEAT_DEB")
	if deb == "" {
		t.Skip("CLEAT_DEB names no package; `make test-deb` builds and tests one")
	}
	needPrograms(t, "dpkg", "deb-systemd-invoke")
	told := bootSystemd(t, "package.sh", deb)
	if len(told["skip"]) > 0 {
		t.Skip(told["skip"][0])
	}
	tells(t, told, "installed", "enabled, inactive, socket enabled, active", "no keeper runs")
	tells(t, told, "installed again", "the keeper goes on", "a keeper starts at boot: /usr/lib/systemd/system/cleat-keep.service", "no second unit")
	const takes = "host a takes part in cluster, of 1"
	tells(t, told, "node", "enabled, inactive", takes, "active", "killed, and back", "upgraded", "inactive, success", "again: "+takes)
	tells(t, told, "removed", "inactive", "no device, no process")
	tells(t, told, "restored", "active, keeps attachments", "the network is back")
	tells(t, told, "purged", "not-found, inactive", "no device, no process", "no file")
}

// needPrograms skips the test if a program is not installed.
func needPrograms(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := program.Find(p); err != nil {
			t.Skipf("no program %s", p)
		}
	}
}
