package remote_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/bench/benchtest"
	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/link"

	"golang.org/x/sys/unix"
)

// Machines are nodes of a root lab on one switch, each with a real sshd. The program runs
// on a third one.
//
//	here 192.0.2.10 ─ switch ─ db1 192.0.2.1
//	                        └─ db2 192.0.2.2

// programEnv passes the path of cleat to the tests in the lab.
const programEnv = "CLEAT_REMOTE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(wrapperEnv); dir != "" {
		os.Exit(runWrapper(dir, os.Args[1:]))
	}
	os.Exit(func() int {
		if _, inside := lab.Inside(); !inside && os.Geteuid() == 0 {
			dir, err := os.MkdirTemp("", "cleat-bin-")
			if err == nil {
				defer os.RemoveAll(dir)
				err = os.Chmod(dir, 0o755) // another user's ssh session runs nothing from here, but may look
			}
			if err == nil { // without the symbols, as in Makefile: each connection sends it
				build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+"/", "cleat/cmd/cleat")
				build.Env = append(os.Environ(), "CGO_ENABLED=0")
				build.Stderr = os.Stderr
				err = build.Run()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			os.Setenv(programEnv, filepath.Join(dir, "cleat"))
		}
		return labtest.RunTests(m)
	}())
}

// machine is a node with an sshd.
type machine struct {
	*lab.Node
	name string
	addr netip.Addr
	sshd lab.Proc
}

// site is everything of one test.
type site struct {
	t          *testing.T
	dir        string // keys, configurations, results
	program    string
	here       *lab.Node
	sw         *lab.Switch
	machines   []*machine
	hostKeys   map[string]string
	knownHosts string
}

// option changes a machine before its sshd starts.
type option func(m *machine, s *site, lines *[]string) (wrap []string)

func newSite(t *testing.T, options ...option) *site {
	t.Helper()
	lab.Need(t)
	if f, _ := lab.Inside(); f != lab.Root {
		t.Skip("sshd needs a lab that root makes")
	}
	for _, program := range []string{"/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"} {
		if _, err := os.Stat(program); err != nil {
			t.Skip("no OpenSSH: apt-get install openssh-server openssh-client")
		}
	}
	s := &site{t: t, dir: benchtest.Scratch(t), program: os.Getenv(programEnv), hostKeys: map[string]string{}}
	s.knownHosts = filepath.Join(s.dir, "known_hosts")
	check(t, os.Chmod(s.dir, 0o755))
	privateRun(t)
	s.keygen("user")
	s.here = node(t, "here")
	sw, err := lab.NewSwitch("switch", 0)
	check(t, err)
	s.sw = sw
	t.Cleanup(func() { s.sw.Close() })
	_, err = s.sw.Plug(lab.End{Node: s.here, Name: "eth0"}, 0)
	check(t, err)
	check(t, s.here.Address("eth0", netip.MustParsePrefix("192.0.2.10/24")))
	s.add("db1", "192.0.2.1", options)
	s.add("db2", "192.0.2.2", options)
	s.writeConfig()
	return s
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func node(t *testing.T, name string) *lab.Node {
	t.Helper()
	n, err := lab.NewNode(name)
	check(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

// privateRun gives the lab a /run of its own, with the directory that sshd needs, and users of its own.
func privateRun(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/run/of-the-lab"); err == nil {
		return
	}
	check(t, unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755"))
	check(t, os.MkdirAll("/run/sshd", 0o755))
	for name, line := range map[string]string{
		"passwd": "tester:x:4242:4242::/nonexistent:/bin/sh\n",
		"shadow": "tester:*:19000:0:99999:7:::\n",
		"group":  "tester:x:4242:\n",
	} {
		text, err := os.ReadFile("/etc/" + name)
		check(t, err)
		check(t, os.WriteFile("/run/"+name, append(text, line...), 0o644))
		check(t, unix.Mount("/run/"+name, "/etc/"+name, "", unix.MS_BIND, ""))
	}
	check(t, os.Chmod("/dev/shm", 0o711)) // the lab's own, with what tester's ssh session needs
	check(t, os.WriteFile("/run/of-the-lab", nil, 0o644))
}

func (s *site) keygen(name string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path).CombinedOutput()
	if err != nil {
		s.t.Fatalf("make a key: %v\n%s", err, out)
	}
	public, err := os.ReadFile(path + ".pub")
	check(s.t, err)
	return strings.Join(strings.Fields(string(public))[:2], " ")
}

// add makes a machine and starts its sshd.
func (s *site) add(name, addr string, options []option) {
	s.t.Helper()
	m := &machine{Node: node(s.t, name), name: name, addr: netip.MustParseAddr(addr)}
	_, err := s.sw.Plug(lab.End{Node: m.Node, Name: "eth0"}, 0)
	check(s.t, err)
	check(s.t, m.Address("eth0", netip.PrefixFrom(m.addr, 24)))
	s.hostKeys[addr] = s.keygen("host-" + name)
	authorized, err := os.ReadFile(filepath.Join(s.dir, "user.pub"))
	check(s.t, err)
	check(s.t, os.WriteFile(filepath.Join(s.dir, "authorized"), authorized, 0o644))
	runtimeDir := s.runtimeDir(name)
	check(s.t, os.MkdirAll(runtimeDir, 0o777))
	check(s.t, os.Chmod(runtimeDir, 0o777))
	lines := []string{
		"ListenAddress " + addr, "HostKey " + filepath.Join(s.dir, "host-"+name),
		"AuthorizedKeysFile " + filepath.Join(s.dir, "authorized"), "PidFile none", "StrictModes no", "UsePAM no",
		"PasswordAuthentication no", "PermitRootLogin yes", "MaxStartups 100", "LogLevel ERROR",
		"SetEnv XDG_RUNTIME_DIR=" + runtimeDir,
	}
	var wrap []string
	for _, o := range options {
		wrap = append(wrap, o(m, s, &lines)...)
	}
	config := filepath.Join(s.dir, "sshd-"+name)
	check(s.t, os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	log, err := os.Create(filepath.Join(s.dir, "log-"+name))
	check(s.t, err)
	defer log.Close()
	m.sshd, err = m.Start(lab.Command{Args: append(wrap, "/usr/sbin/sshd", "-D", "-e", "-f", config), Stdout: log, Stderr: log})
	check(s.t, err)
	s.t.Cleanup(func() { m.sshd.Kill(); m.sshd.Wait() })
	s.waitFor("sshd of "+name, func() bool {
		return s.here.NS.Do(func() error { return exec.Command("bash", "-c", "exec 3<>/dev/tcp/"+addr+"/22").Run() }) == nil
	})
	s.machines = append(s.machines, m)
}

func (s *site) runtimeDir(name string) string { return filepath.Join(s.dir, "runtime-"+name) }

func (s *site) writeConfig() {
	s.t.Helper()
	var known strings.Builder
	for addr, key := range s.hostKeys {
		fmt.Fprintf(&known, "%s %s\n", addr, key)
	}
	check(s.t, os.WriteFile(s.knownHosts, []byte(known.String()), 0o600))
	check(s.t, os.WriteFile(filepath.Join(s.dir, "ssh.conf"), fmt.Appendf(nil, "IdentityFile %s\nIdentitiesOnly yes\nUserKnownHostsFile %s\nGlobalKnownHostsFile none\n",
		filepath.Join(s.dir, "user"), s.knownHosts), 0o644))
}

// waitFor waits for a condition. It fails the test only if it never comes true.
func (s *site) waitFor(what string, ready func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("never: %s", what)
		}
	}
}

// run is a running `cleat`.
type run struct {
	*exec.Cmd
	out, err bytes.Buffer
}

func (s *site) command(args ...string) *run {
	r := &run{Cmd: exec.Command(s.program, args...)}
	r.Stdout, r.Stderr = &r.out, &r.err
	r.Dir = s.dir
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal
	return r
}

func (s *site) start(args ...string) *run {
	s.t.Helper()
	r := s.command(args...)
	check(s.t, s.here.NS.Do(r.Start))
	return r
}

func (r *run) code() int {
	err := r.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// between returns the arguments of a small run over the path that exists.
func (s *site) between(user string, more ...string) []string {
	return append([]string{"bench", "between", "ssh://" + user + "@192.0.2.1", "ssh://" + user + "@192.0.2.2",
		"--ssh", "ssh -F " + filepath.Join(s.dir, "ssh.conf"), "--repeat", "2", "--duration", "50ms"}, more...)
}

func (s *site) overlays(more ...string) []string {
	return append([]string{"bench", "overlays", "--node", "ssh://root@192.0.2.1", "--node", "ssh://root@192.0.2.2",
		"--ssh", "ssh -F " + filepath.Join(s.dir, "ssh.conf"), "--repeat", "2", "--duration", "50ms"}, more...)
}

// traces are what a run could leave behind on the machines.
func (s *site) traces() []string {
	var found []string
	procs, err := filepath.Glob("/proc/[0-9]*")
	check(s.t, err)
	for _, p := range procs {
		if exe, err := os.Readlink(p + "/exe"); err == nil && (strings.Contains(exe, "cleat-node-") || strings.HasPrefix(exe, s.program)) {
			args, _ := os.ReadFile(p + "/cmdline")
			found = append(found, fmt.Sprintf("process %s: %s: %q", p, exe, args))
		}
		text, err := os.ReadFile(p + "/cmdline")
		if err == nil && bytes.Contains(text, []byte("sha256sum")) && bytes.Contains(text, []byte("cleat-node-")) {
			found = append(found, "shell "+p)
		}
	}
	for _, m := range s.machines {
		h, err := link.Handle(m.NS)
		check(s.t, err)
		links, err := h.LinkList()
		check(s.t, err)
		for _, l := range links {
			found = append(found, fmt.Sprintf("link %s of %s", l.Attrs().Name, m.name))
		}
		routes, err := h.RouteList(nil, unix.AF_INET)
		check(s.t, err)
		for _, r := range routes {
			found = append(found, fmt.Sprintf("route %s of %s", r, m.name))
		}
		h.Close()
		check(s.t, m.NS.Do(func() error {
			sockets, err := os.ReadFile("/proc/thread-self/net/tcp")
			for line := range strings.Lines(string(sockets)) {
				if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" {
					found = append(found, fmt.Sprintf("listener %s of %s", f[1], m.name))
				}
			}
			return err
		}))
	}
	dirs := []string{"/run", "/tmp", "/var/tmp"}
	for _, m := range s.machines {
		dirs = append(dirs, s.runtimeDir(m.name))
	}
	for _, dir := range dirs {
		left, err := filepath.Glob(filepath.Join(dir, "cleat-node-*"))
		check(s.t, err)
		found = append(found, left...)
	}
	for _, table := range s.nftTables() {
		found = append(found, "nft table "+table)
	}
	return found
}

func (s *site) nftTables() []string {
	var all []string
	for _, m := range s.machines {
		m.NS.Do(func() error {
			out, err := exec.Command("nft", "list", "tables").Output()
			for line := range strings.Lines(string(out)) {
				all = append(all, m.name+": "+line)
			}
			return err // without nft there are no tables of ours either
		})
	}
	return all
}

// nothingLeft waits until the machines are as before.
func (s *site) nothingLeft(before []string) {
	s.t.Helper()
	var left []string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left = slices.DeleteFunc(s.traces(), func(found string) bool { return slices.Contains(before, found) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("left behind:\n%s", strings.Join(left, "\n"))
		}
	}
}
