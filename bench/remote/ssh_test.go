package remote_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cleat/bench/cell"

	"golang.org/x/sys/unix"
)

// expect runs cleat to its end and checks its exit code and what it printed.
func (s *site) expect(code int, args []string, texts ...string) *run {
	s.t.Helper()
	r := s.start(args...)
	got := r.code()
	all := r.out.String() + r.err.String()
	if got != code {
		s.t.Errorf("exit code %d, want %d", got, code)
	}
	// Lines are wrapped for the terminal.
	flat := strings.Join(strings.Fields(all), " ")
	for _, want := range texts {
		if !strings.Contains(flat, want) {
			s.t.Errorf("does not say %q", want)
		}
	}
	if s.t.Failed() {
		s.t.Fatalf("%q:\n%s", args, all)
	}
	return r
}

// An ordinary user needs neither root nor sudo to measure the path that exists.
func TestExistingPath(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	s.expect(0, s.between("tester", "--out", "run"),
		"between the machines 192.0.2.1 and 192.0.2.2", "outbound", "inbound", "report: run/report.html")
	s.nothingLeft(before)
	var env struct {
		Lab      string
		Partial  bool
		Machines []struct {
			Name, Address string
			Processors    []int
			Host          struct{ Kernel struct{ Release string } }
		}
	}
	text, err := os.ReadFile(filepath.Join(s.dir, "run", "environment.json"))
	check(t, err)
	check(t, json.Unmarshal(text, &env))
	if len(env.Machines) != 2 || env.Lab != "machines" || env.Partial {
		t.Fatalf("environment.json: %+v", env)
	}
	for i, m := range env.Machines {
		if want := fmt.Sprintf("192.0.2.%d", i+1); m.Name != want || m.Address != "ssh://tester@"+want || len(m.Processors) == 0 || m.Host.Kernel.Release == "" {
			t.Errorf("environment.json: machine %d: %+v", i, m)
		}
	}
	html, err := os.ReadFile(filepath.Join(s.dir, "run", "report.html"))
	check(t, err)
	for _, want := range []string{"192.0.2.1: ", "192.0.2.2: ", "Machine 192.0.2.2", "run on two of the machines 192.0.2.1, 192.0.2.2"} {
		if !strings.Contains(string(html), want) {
			t.Errorf("report.html does not say %q", want)
		}
	}
	// What was measured is the path between the two: each sample has a number, and the
	// processor time of both.
	samples, err := os.ReadFile(filepath.Join(s.dir, "run", "samples.jsonl"))
	check(t, err)
	var cores, wall float64
	for line := range strings.Lines(string(samples)) {
		var sample struct {
			Values map[string]float64
			Error  string
			CPU    cell.CPU
		}
		check(t, json.Unmarshal([]byte(line), &sample))
		c := sample.CPU
		if sample.Error != "" || len(sample.Values) == 0 || c.Wall < 0.05 { // both windows have at least the work's duration
			t.Errorf("sample: %s", line)
		}
		cores, wall = cores+c.User+c.System+c.SoftIRQ+c.Idle+c.Steal, wall+c.Wall
	}
	// Both machines are this one, so its processors count twice.
	if times := cores / wall / float64(runtime.NumCPU()); times < 1.5 || times > 2.5 {
		t.Errorf("the processor time is that of %.2f machines", times)
	}
}

// Networks are built between the machines as far as both can, and every other one has a line
// with the reason.
func TestOverlays(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	s.expect(0, s.overlays("--out", "run", "--device", "eth0,eth0", "--work", "tcp"),
		"macvlan-bridge", "vxlan-fdb-bridge", "vxlan-multicast", "existing-path, inbound", "existing-path, outbound",
		"cleat-overlay, flannel-vxlan, ", ": its programs are not sent to other machines",
		"bridge, ipvlan-l3: it changes the machine's own device")
	s.nothingLeft(before)
	type line struct {
		Network string
		Work    string
		Values  map[string]float64
		Absent  string
		Error   string
	}
	text, err := os.ReadFile(filepath.Join(s.dir, "run", "samples.jsonl"))
	check(t, err)
	measured, absent := map[string]bool{}, map[string]string{}
	for one := range strings.Lines(string(text)) {
		var l line
		check(t, json.Unmarshal([]byte(one), &l))
		switch {
		case l.Absent != "":
			absent[l.Network] = l.Absent
		case l.Error != "":
			t.Errorf("%s: %s", l.Network, l.Error)
		default:
			measured[l.Network] = true
		}
	}
	for _, network := range []string{"existing-path", "macvlan-bridge", "vxlan", "vxlan-multicast", "vxlan-fdb", "vxlan-bridge", "vxlan-multicast-bridge", "vxlan-fdb-bridge"} {
		if !measured[network] {
			t.Errorf("%s was not measured: %s", network, absent[network])
		}
	}
	for _, network := range []string{"geneve", "wireguard", "ipip", "gre"} {
		if !measured[network] && !strings.Contains(absent[network], "192.0.2.1 and 192.0.2.2: ") {
			t.Errorf("%s: absent because of %q", network, absent[network])
		}
	}
}

// Several pairs at once, and links on devices that exclude each other.
func TestSeveralPairs(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	args := s.overlays("--out", "run", "--device", "eth0,eth0", "--pairs", "1,4", "--work", "tcp", "--repeat", "1",
		"--networks", "macvlan-bridge,macvlan-private,vxlan-fdb-bridge", "--factor", "vxlan_port=4789")
	r := s.expect(0, args, "macvlan-private", "4 pairs", "existing-path, 4 pairs, inbound")
	if out := r.out.String(); strings.Contains(out, "Unavailable") || strings.Contains(out, "failed") {
		t.Errorf("not all were measured:\n%s", out)
	}
	s.nothingLeft(before)
}

func TestStackedLinksNeedADevice(t *testing.T) {
	s := newSite(t)
	s.expect(0, s.overlays("--networks", "macvlan-bridge", "--work", "rr", "--out", "run"),
		"macvlan-bridge: it puts links on a machine's device: name one for each machine with --device")
	s.expect(1, s.overlays("--networks", "vxlan", "--work", "rr", "--device", "eth0,eth7", "--out", "other"),
		"has no address that others could reach on eth7")
}

// With three machines the first is measured with each other one.
func TestThreeMachines(t *testing.T) {
	s := newSite(t)
	s.add("db3", "192.0.2.3", nil)
	s.writeConfig()
	before := s.traces()
	s.expect(0, s.overlays("--node", "ssh://root@192.0.2.3", "--networks", "vxlan", "--factor", "vxlan_port=4789", "--work", "rr", "--out", "run"),
		"between the machines 192.0.2.1 and 192.0.2.2", "between the machines 192.0.2.1 and 192.0.2.3",
		"Between 192.0.2.1 and 192.0.2.2", "Between 192.0.2.1 and 192.0.2.3")
	s.nothingLeft(before)
}

func TestList(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	args := s.overlays()
	args = append([]string{"bench", "list"}, args[2:len(args)-4]...)
	s.expect(0, args, "Containers of different hosts vxlan VXLAN, point to point", "- bridge ",
		"bridge, bridge-nf", "it changes the machine's own device", "- macvlan-bridge ", "name one for each machine with --device")
	s.expect(0, append(args, "--device", "eth0,eth0"), "Container to container, one host", " macvlan-bridge ")
	s.nothingLeft(before)
}

func TestUnknownHostKey(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	check(t, os.WriteFile(s.knownHosts, nil, 0o600))
	s.expect(1, s.between("root", "--out", "run"),
		"cleat: error: ssh://root@192.0.2.1: the machine's host key is not known",
		"cleat: hint: connect once by hand and compare the fingerprint: ssh -l root 192.0.2.1")
	if text, err := os.ReadFile(s.knownHosts); err != nil || len(text) > 0 {
		t.Errorf("the key was accepted: %q, %v", text, err)
	}
	s.nothingLeft(before)
}

func TestChangedHostKey(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	s.hostKeys["192.0.2.2"] = s.hostKeys["192.0.2.1"]
	s.writeConfig()
	s.expect(1, s.between("root", "--out", "run"),
		"cleat: error: ssh://root@192.0.2.2: the machine's host key is not the one that is known",
		"cleat: hint: ask its owner; if the key has changed for a good reason: ssh-keygen -R '192.0.2.2'")
	s.nothingLeft(before)
}

// onTerminal starts cleat with a terminal of its own. It returns what the terminal shows,
// and a function that types.
func (s *site) onTerminal(args ...string) (r *run, screen func() string, typed func(string)) {
	s.t.Helper()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	check(s.t, err)
	s.t.Cleanup(func() { pty.Close() })
	check(s.t, unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN)
	check(s.t, err)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	check(s.t, err)
	defer tty.Close()
	r = s.command(args...)
	r.Stdin, r.Stderr = tty, tty
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	check(s.t, s.here.NS.Do(r.Start))
	var mu sync.Mutex
	var text strings.Builder
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := pty.Read(buf)
			mu.Lock()
			text.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	screen = func() string {
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
	return r, screen, func(keys string) {
		_, err := io.WriteString(pty, keys)
		check(s.t, err)
	}
}

// On a terminal ssh asks about an unknown host key, and what the user answers holds.
func TestAskAboutHostKey(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	for _, tt := range []struct {
		name    string
		answers []string
		code    int
		known   int
	}{
		{"no", []string{"no\n"}, 1, 0},
		{"Ctrl-C", []string{"\x03"}, 130, 0},
		{"yes", []string{"yes\n", "yes\n"}, 0, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			check(t, os.WriteFile(s.knownHosts, nil, 0o600))
			check(t, os.RemoveAll(filepath.Join(s.dir, "run")))
			r, screen, typed := s.onTerminal(s.between("root", "--out", "run")...)
			for i, answer := range tt.answers {
				s.waitFor("the question", func() bool { return strings.Count(screen(), "continue connecting") > i })
				typed(answer)
			}
			if code := r.code(); code != tt.code {
				t.Errorf("exit code %d, want %d\n%s\n%s", code, tt.code, screen(), r.out.String())
			}
			text, err := os.ReadFile(s.knownHosts)
			check(t, err)
			if n := strings.Count(string(text), "\n"); n != tt.known {
				t.Errorf("%d known hosts: %s", n, text)
			}
			s.nothingLeft(before)
		})
	}
}

// A Ctrl-C at the terminal, which goes to the whole process group in the foreground, ends
// both machines' work in order and keeps what was measured.
func TestCtrlC(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	r, screen, typed := s.onTerminal(s.between("root", "--out", "run", "--repeat", "100")...)
	samples := filepath.Join(s.dir, "run", "samples.jsonl")
	s.waitFor("samples", func() bool {
		text, _ := os.ReadFile(samples)
		return strings.Count(string(text), "\n") > 8
	})
	typed("\x03")
	if code := r.code(); code != 130 {
		t.Errorf("exit code %d\n%s", code, screen())
	}
	if strings.Contains(screen(), "error") || !strings.Contains(r.out.String(), "report: run/report.html") {
		t.Errorf("terminal:\n%s\noutput:\n%s", screen(), r.out.String())
	}
	s.nothingLeft(before)
}

func TestNoSudo(t *testing.T) {
	s := newSite(t, fake("sudo", "echo sudo: a password is required >&2; exit 1"))
	before := s.traces()
	args := s.overlays("--out", "run")
	for i := range args {
		args[i] = strings.Replace(args[i], "ssh://root@", "ssh://tester@", 1)
	}
	s.expect(1, args, "cleat: error: ssh://tester@192.0.2.1: networks need root, and sudo does not work without a password for tester: sudo: a password is required",
		"cleat: hint: connect as root (ssh://root@…), or let tester use sudo without a password there: echo 'tester ALL=(ALL) NOPASSWD: ALL' | sudo tee")
	s.nothingLeft(before)
}

// With sudo an ordinary user builds networks. The stand-in for sudo is the shell's own user,
// whom sshd takes for tester.
func TestSudo(t *testing.T) {
	s := newSite(t, fake("id", `if [ "$1" = -un ]; then echo tester; else echo 4242; fi`), fake("sudo", `[ "$1" = -n ] || exit 1; shift; exec "$@"`))
	before := s.traces()
	s.expect(0, s.overlays("--out", "run", "--networks", "vxlan", "--factor", "vxlan_port=4789", "--work", "rr"), "vxlan")
	s.nothingLeft(before)
}

func TestOtherArchitecture(t *testing.T) {
	s := newSite(t, fake("uname", `if [ "$1" = -m ]; then echo riscv64; else echo Linux; fi`))
	before := s.traces()
	s.expect(1, s.between("root", "--out", "run"), "cleat: error: ssh://root@192.0.2.1: it runs Linux on riscv64, and this program is for Linux on ")
	s.nothingLeft(before)
}

func TestDamagedProgram(t *testing.T) {
	s := newSite(t, fake("sha256sum", `echo 0123 "$1"`))
	before := s.traces()
	s.expect(1, s.between("root", "--out", "run"), "cleat: error: ssh://root@192.0.2.1: this program arrived changed: its SHA-256 there is 0123")
	s.nothingLeft(before)
}

// No directory can hold the program or let it run: each has its reason.
func TestNoDirectory(t *testing.T) {
	hide := func(options string) option {
		return func(m *machine, s *site, _ *[]string) []string {
			mount := fmt.Sprintf("for d in %s /tmp /var/tmp; do mount -t tmpfs -o %s tmpfs $d; done; exec \"$@\"", s.runtimeDir(m.name), options)
			return []string{"unshare", "--mount", "sh", "-c", mount, "sh"}
		}
	}
	t.Run("noexec", func(t *testing.T) {
		s := newSite(t, hide("noexec"))
		before := s.traces()
		s.expect(1, s.between("root", "--out", "run"), "cleat: error: ssh://root@192.0.2.1: no directory there can hold and run this program: "+
			s.runtimeDir("db1")+" does not let programs run (noexec), /run does not let programs run (noexec), /tmp does not let programs run (noexec)", "cleat: hint: make space in one of them")
		s.nothingLeft(before)
	})
	t.Run("full", func(t *testing.T) {
		s := newSite(t, hide("size=1M"))
		before := s.traces()
		s.expect(1, s.between("root", "--out", "run"), "/tmp has 1020 KiB left of the ")
		s.nothingLeft(before)
	})
}

// fake puts a program of that name before those of the machine.
func fake(name, script string) option {
	return func(m *machine, s *site, lines *[]string) []string {
		dir := filepath.Join(s.dir, "bin-"+m.name)
		check(s.t, os.MkdirAll(dir, 0o755))
		check(s.t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
		for i, l := range *lines {
			if rest, ok := strings.CutPrefix(l, "SetEnv "); ok && !strings.Contains(l, "PATH=") {
				(*lines)[i] = "SetEnv PATH=" + dir + ":/usr/sbin:/usr/bin:/sbin:/bin " + rest
			}
		}
		return nil
	}
}
