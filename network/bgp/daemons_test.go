package bgp_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cleat/internal/program"
	"cleat/lab"

	"golang.org/x/sys/unix"
)

// daemon is a routing daemon of others on a node.
type daemon struct {
	t     *testing.T
	node  *lab.Node
	dir   string // of its sockets and files
	start func()
	procs []lab.Proc
	names []string
	ask   func(commands ...string) string
}

// run starts a program of the daemon.
func (d *daemon) run(args ...string) {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(d.t, err)
	defer log.Close()
	p, err := d.node.Start(lab.Command{Args: args, Stdout: log, Stderr: log})
	must(d.t, err)
	d.procs, d.names = append(d.procs, p), append(d.names, filepath.Base(args[0]))
}

// kill ends the programs of a name as kill -9 does; "" means all.
func (d *daemon) kill(name string) {
	for i, p := range d.procs {
		if p != nil && (name == "" || d.names[i] == name) {
			p.Kill()
			p.Wait()
			d.procs[i] = nil
		}
	}
}

// signal sends the programs a signal.
func (d *daemon) signal(s unix.Signal) {
	d.t.Helper()
	for _, p := range d.procs {
		if p != nil {
			must(d.t, unix.Kill(p.PID(), s))
		}
	}
}

func newDaemon(t *testing.T, node *lab.Node) *daemon {
	d := &daemon{t: t, node: node, dir: t.TempDir()}
	t.Cleanup(func() {
		d.kill("")
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			t.Logf("daemon on %s:\n%s", node, text)
		}
	})
	return d
}

// need returns the path of a program, or skips the test.
func need(t *testing.T, name, debian string) string {
	t.Helper()
	path, err := program.Find(name)
	if err != nil && debian == "frr" { // not in any PATH
		path = "/usr/lib/frr/" + name
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skipf("%s is not installed; Debian's package is %s", name, debian)
	}
	return path
}

// newBird starts BIRD with a configuration.
func newBird(t *testing.T, node *lab.Node, config string) *daemon {
	t.Helper()
	bird, birdc := need(t, "bird", "bird2"), need(t, "birdc", "bird2")
	d := newDaemon(t, node)
	file, socket := filepath.Join(d.dir, "bird.conf"), filepath.Join(d.dir, "s")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	d.start = func() { d.run(bird, "-f", "-c", file, "-s", socket, "-P", filepath.Join(d.dir, "pid")) }
	d.ask = func(commands ...string) string {
		return output(t, node, append([]string{birdc, "-s", socket}, commands...)...)
	}
	d.start()
	return d
}

func (d *daemon) reconfigure(config string) {
	d.t.Helper()
	must(d.t, os.WriteFile(filepath.Join(d.dir, "bird.conf"), []byte(config), 0o600))
	if out := d.ask("configure"); !strings.Contains(out, "Reconfigured") && !strings.Contains(out, "in progress") {
		d.t.Fatal(out)
	}
}

// newFRR starts FRR with a configuration.
func newFRR(t *testing.T, node *lab.Node, config string, more ...string) *daemon {
	t.Helper()
	d := newDaemon(t, node)
	zebra, bgpd, vtysh := need(t, "zebra", "frr"), need(t, "bgpd", "frr"), need(t, "vtysh", "frr")
	must(t, asMember())
	must(t, os.WriteFile(filepath.Join(d.dir, "frr.conf"), []byte(config), 0o600))
	must(t, os.WriteFile(filepath.Join(d.dir, "vtysh.conf"), nil, 0o600))
	run := func(path string) {
		name := filepath.Base(path)
		args := []string{path, "-f", filepath.Join(d.dir, "frr.conf"), "-i", filepath.Join(d.dir, name+".pid"), "-z", filepath.Join(d.dir, "z"),
			"--vty_socket", d.dir, "-P", "0", "-u", "root", "-g", "root", "--log", "stdout"}
		if name == "bfdd" {
			args = append(args, "--bfdctl", filepath.Join(d.dir, "bfdd"))
		}
		d.run(args...)
	}
	programs := []string{zebra, bgpd}
	for _, name := range more {
		programs = append(programs, need(t, name, "frr"))
	}
	d.ask = func(commands ...string) string {
		args := []string{vtysh, "--vty_socket", d.dir, "--config_dir", d.dir}
		for _, c := range commands {
			args = append(args, "-c", c)
		}
		return output(t, node, args...)
	}
	for _, path := range programs {
		run(path)
		eventually(t, func() error { _, err := os.Stat(filepath.Join(d.dir, filepath.Base(path)+".vty")); return err })
	}
	d.start = func() { run(bgpd) }
	return d
}

// output runs a program on a node and returns its output.
func output(t *testing.T, node *lab.Node, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, node.NS.Do(cmd.Start))
	if err := cmd.Wait(); err != nil {
		return fmt.Sprintf("%s: %v: %s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// write replaces a file of the daemon.
func (d *daemon) write(name, text string) {
	d.t.Helper()
	must(d.t, os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600))
}

// configureFRR makes bgpd announce certain prefixes of those that it did.
func (d *daemon) configureFRR(announced ...string) {
	d.t.Helper()
	for _, line := range strings.Split(d.ask("show running-config"), "\n") {
		p, ok := strings.CutPrefix(strings.TrimSpace(line), "network ")
		if !ok || strings.Contains(strings.Join(announced, " ")+" ", p+" ") {
			continue
		}
		if out := d.ask("configure terminal", "router bgp 65000", "address-family ipv4 unicast", "no network "+p); out != "" {
			d.t.Fatal(out)
		}
	}
}

// asMember makes root a member of the group that FRR's programs require, for this lab: it has mounts of its own.
var asMember = sync.OnceValue(func() error {
	const path = "/etc/group"
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "frrvty:") {
			lines[i] = l[:strings.LastIndex(l, ":")+1] + "root"
		}
	}
	f, err := os.CreateTemp("", "group")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.WriteString(strings.Join(lines, "\n")); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	return unix.Mount(f.Name(), path, "", unix.MS_BIND, "")
})
