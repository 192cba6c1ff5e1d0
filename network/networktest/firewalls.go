package networktest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/internal/program"
	"cleat/netns"
)

// A HostFirewall is a program that makes the rules of a host, with files of its own, in a
// network namespace. The machine's own configuration is neither read nor changed.
type HostFirewall struct {
	t    testing.TB
	ns   *netns.NS
	dir  string // its files
	init string // shell commands that put the files in place, in a mount namespace of its own
	env  []string
}

// Files of programs that tests replace.
var (
	ufwFiles       = []string{"/etc/ufw", "/etc/default/ufw"}
	firewalldFiles = []string{"/etc/firewalld", "/var/log"}
)

// ownRun puts an empty directory in the place of /run.
const ownRun = "mount -t tmpfs none /run && "

// UFW returns ufw, disabled. It skips the test if the machine lacks ufw.
func UFW(t testing.TB, ns *netns.NS) *HostFirewall {
	t.Helper()
	need(t, "ufw", "unshare")
	f := &HostFirewall{t: t, ns: ns, dir: t.TempDir(), init: ownRun}
	for i, path := range ufwFiles {
		f.place(path, fmt.Sprint(i), true)
	}
	return f
}

// Firewalld starts firewalld, which runs until the test ends. It skips the test if the machine
// lacks firewalld.
func Firewalld(t testing.TB, ns *netns.NS) *HostFirewall {
	t.Helper()
	need(t, "firewalld", "firewall-cmd", "dbus-daemon", "unshare")
	// The path of a socket is short.
	dir, err := os.MkdirTemp("", "fw")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &HostFirewall{t: t, ns: ns, dir: dir, init: ownRun, env: []string{"DBUS_SYSTEM_BUS_ADDRESS=unix:path=" + dir + "/bus"}}
	must(t, os.WriteFile(dir+"/bus.conf", fmt.Appendf(nil, busConfig, dir), 0o644))
	f.start("dbus-daemon", "--config-file="+dir+"/bus.conf", "--nofork", "--nopidfile")
	f.waitFor("the bus", func() error { _, err := os.Stat(dir + "/bus"); return err })
	for i, path := range firewalldFiles {
		f.place(path, fmt.Sprint(i), false)
	}
	f.start("firewalld", "--nofork", "--nopid")
	f.waitFor("firewalld", func() error { return f.command("firewall-cmd", "--state").Run() })
	return f
}

// busConfig is the configuration of a D-Bus daemon that permits everything.
const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=%s/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
</busconfig>
`

func need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := program.Find(p); err != nil {
			t.Skipf("no program %s", p)
		}
	}
}

// place puts a file or directory of the test's in the place of the machine's, with its content if
// copied is set.
func (f *HostFirewall) place(path, name string, copied bool) {
	f.t.Helper()
	own := filepath.Join(f.dir, name)
	if copied {
		if out, err := exec.Command("cp", "-a", path, own).CombinedOutput(); err != nil {
			f.t.Fatalf("copy %s: %v: %s", path, err, out)
		}
	} else {
		must(f.t, os.Mkdir(own, 0o755))
	}
	f.init += "mount --bind " + own + " " + path + " && "
}

// command returns a command with the files in place.
func (f *HostFirewall) command(args ...string) *exec.Cmd {
	cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", f.init + `exec "$@"`, "sh"}, args...)...)
	cmd.Env = append(append(os.Environ(), "PATH="+program.SearchPath()), f.env...)
	return cmd
}

// start starts a command that runs until the test ends.
func (f *HostFirewall) start(args ...string) {
	f.t.Helper()
	cmd := f.command(args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(f.t, f.ns.Do(cmd.Start))
	f.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if f.t.Failed() {
			f.t.Logf("%s: %s", args[0], out.Bytes())
		}
	})
}

func (f *HostFirewall) waitFor(what string, ready func() error) {
	f.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		var err error
		must(f.t, f.ns.Do(func() error { err = ready(); return nil }))
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s does not start: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Run runs a script with the program's files in place, and fails the test if it fails.
func (f *HostFirewall) Run(script string) string {
	f.t.Helper()
	var out []byte
	must(f.t, f.ns.Do(func() (err error) {
		if out, err = f.command("sh", "-ec", script).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return err
	}))
	return strings.TrimSpace(string(out))
}
