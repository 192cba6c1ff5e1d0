package remote_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cleat/link"
)

// interrupted is a run whose connection to one machine stops at a moment.
type interrupted struct {
	*run
	site *site
	dir  string // of the wrapper
	host string // an address
}

// smallest is a run that has every message: the existing path, and a network.
func (s *site) smallest() []string {
	return s.overlays("--networks", "vxlan", "--factor", "vxlan_port=4789", "--work", "rr", "--repeat", "1", "--out", "run")
}

// startStopping starts a run that stops at a moment; "" stops at none.
func (s *site) startStopping(host, moment string, args []string) *interrupted {
	s.t.Helper()
	dir := s.t.TempDir()
	self, err := os.Executable()
	check(s.t, err)
	if moment != "" {
		check(s.t, os.WriteFile(filepath.Join(dir, host+".stop"), []byte(moment), 0o600))
	}
	check(s.t, os.RemoveAll(filepath.Join(s.dir, "run")))
	i := slices.Index(args, "--ssh") + 1
	args = slices.Clone(args)
	args[i] = strings.Replace(args[i], "ssh ", self+" ", 1)
	r := s.command(args...)
	r.Env = append(os.Environ(), wrapperEnv+"="+dir)
	check(s.t, s.here.NS.Do(r.Start))
	return &interrupted{r, s, dir, host}
}

func (i *interrupted) file(name string) string { return filepath.Join(i.dir, i.host+"."+name) }

// reached waits until the run has stopped at its moment. It reports false if the run ended
// before.
func (i *interrupted) reached() bool {
	i.site.t.Helper()
	var stopped, ended bool
	i.site.waitFor("the moment", func() bool {
		_, err := os.Stat(i.file("reached"))
		stopped = err == nil
		ended = isZombie(i.Process.Pid)
		return stopped || ended
	})
	return stopped
}

// isZombie reports whether a child has ended that nobody has waited for.
func isZombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "Z")
}

func (i *interrupted) goOn() {
	i.site.t.Helper()
	check(i.site.t, os.WriteFile(i.file("go"), nil, 0o600))
}

// sshPID returns the process id of the real ssh.
func (i *interrupted) sshPID() int {
	i.site.t.Helper()
	text, err := os.ReadFile(i.file("ssh"))
	check(i.site.t, err)
	pid, err := strconv.Atoi(string(text))
	check(i.site.t, err)
	return pid
}

// agents returns the process ids of the agent of a machine: outside of its lab, and in it.
func (s *site) agents(name string) []int {
	var out []int
	procs, err := filepath.Glob("/proc/[0-9]*")
	check(s.t, err)
	for _, p := range procs {
		exe, err := os.Readlink(p + "/exe")
		args, _ := os.ReadFile(p + "/cmdline")
		if err == nil && strings.HasPrefix(exe, s.runtimeDir(name)) && strings.Contains(string(args), "\x00node\x00") {
			pid, err := strconv.Atoi(filepath.Base(p))
			check(s.t, err)
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// everyMoment, if set, also cuts at the second and the last message of each kind.
const everyMoment = "CLEAT_REMOTE_EVERY_MOMENT"

// moments returns the moments of a run of the smallest experiment over the connection to
// a host: the first of each kind.
func (s *site) moments(host string) []string {
	s.t.Helper()
	i := s.startStopping(host, "", s.smallest())
	if code := i.code(); code != 0 {
		s.t.Fatalf("exit code %d\n%s", code, i.err.String())
	}
	log, err := os.ReadFile(i.file("log"))
	check(s.t, err)
	last := map[string]string{}
	var out []string
	for line := range strings.Lines(string(log)) {
		line = strings.TrimSpace(line)
		kind, number := line[:strings.LastIndex(line, " ")], line[strings.LastIndex(line, " ")+1:]
		if kind == "> ping" || kind == "< pong" {
			continue // they come at any time
		}
		last[kind] = line
		if number == "1" || number == "2" && os.Getenv(everyMoment) != "" {
			out = append(out, line)
		}
	}
	for _, line := range last {
		if os.Getenv(everyMoment) != "" && !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	s.t.Logf("%d moments: %s", len(out), strings.Join(out, ", "))
	return out
}

// A connection that is cut at any moment leaves nothing on either machine.
func TestCutAtEveryMoment(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	cut := map[string]int{} // how often at each moment
	for _, host := range []string{"192.0.2.1", "192.0.2.2"} {
		for i, moment := range s.moments(host) {
			// By default the machines take turns at what both have.
			if other := host == "192.0.2.2"; os.Getenv(everyMoment) == "" && (!other && i%2 == 1 && common(moment) || other && cut[moment] > 0) {
				continue
			}
			cut[moment]++
			t.Run(host+" "+moment, func(t *testing.T) {
				s := s.in(t)
				i := s.startStopping(host, moment, s.smallest())
				if i.reached() {
					check(t, syscall.Kill(i.sshPID(), syscall.SIGKILL))
					i.goOn()
					if code := i.code(); code != 1 {
						t.Errorf("exit code %d\n%s", code, i.err.String())
					}
				} else {
					t.Logf("the run had ended before: exit code %d", i.code())
				}
				s.nothingLeft(before)
			})
		}
	}
}

// common reports whether both machines' connections have a moment.
func common(moment string) bool {
	return !slices.Contains([]string{"> dial 1", "> listen 1", "> close 1", "> connect 1", "> socket 1", "> accept 1"}, moment)
}

// in returns the site for a subtest.
func (s *site) in(t *testing.T) *site {
	copied := *s
	copied.t = t
	return &copied
}

// Whoever dies, nothing is left.
func TestDeaths(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	const host = "192.0.2.2"
	signalAgent := func(which int, signal syscall.Signal) func(*interrupted) {
		return func(i *interrupted) {
			i.site.t.Helper()
			all := i.site.agents("db2")
			if len(all) != 2 {
				i.site.t.Fatalf("%d processes of the agent", len(all))
			}
			check(i.site.t, syscall.Kill(all[which], signal))
		}
	}
	port := func(up bool) func(*interrupted) {
		return func(i *interrupted) { i.site.setPort("port2", up) }
	}
	for _, tt := range []struct {
		name   string
		moment string
		act    func(*interrupted)
		after  func(*interrupted)
		code   int
	}{
		{"the agent is killed", "< output 3", signalAgent(0, syscall.SIGKILL), nil, 1},
		{"the agent in the lab is killed", "< output 3", signalAgent(1, syscall.SIGKILL), nil, 1},
		{"the shell and the agent are killed", "< output 3", func(i *interrupted) { killShell(i); signalAgent(0, syscall.SIGKILL)(i) }, nil, 1},
		{"the shell is killed", "< output 3", killShell, nil, 1},
		{"the agent gets SIGTERM", "< output 3", signalAgent(0, syscall.SIGTERM), nil, 1},
		{"the agent gets SIGHUP", "< output 3", signalAgent(0, syscall.SIGHUP), nil, 1},
		{"Ctrl-C", "< output 3", func(i *interrupted) { check(i.site.t, i.Process.Signal(syscall.SIGINT)) }, nil, 130},
		{"Ctrl-C during the upload", "upload 1", func(i *interrupted) { check(i.site.t, i.Process.Signal(syscall.SIGINT)) }, nil, 130},
		{"the program is killed", "< output 3", func(i *interrupted) { check(i.site.t, i.Process.Kill()) }, nil, -1},
		{"packets are dropped during a measurement", "> meter 1", port(false), port(true), 1},
		{"packets are dropped while a network is made", "> build 1", port(false), port(true), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			i := s.startStopping(host, tt.moment, s.smallest())
			if !i.reached() {
				t.Fatalf("ended with %d\n%s", i.code(), i.err.String())
			}
			tt.act(i)
			i.goOn()
			if code := i.code(); code != tt.code {
				t.Errorf("exit code %d, want %d\n%s", code, tt.code, i.err.String())
			}
			if tt.after != nil {
				s.nothingRuns("db2") // although nobody tells that machine
				tt.after(i)
			}
			s.nothingLeft(before)
		})
	}
}

// Without root there are no namespaces that end with the agent, and yet nothing is left.
func TestDeathsWithoutRoot(t *testing.T) {
	s := newSite(t)
	before := s.traces()
	const host, moment = "192.0.2.2", "< output 3"
	agent := func(signal syscall.Signal) func(*interrupted) {
		return func(i *interrupted) {
			i.site.t.Helper()
			all := i.site.agents("db2")
			if len(all) != 1 {
				i.site.t.Fatalf("%d processes of the agent", len(all))
			}
			check(i.site.t, syscall.Kill(all[0], signal))
		}
	}
	for _, tt := range []struct {
		name string
		act  func(*interrupted)
		code int
	}{
		{"the connection is cut", func(i *interrupted) { check(i.site.t, syscall.Kill(i.sshPID(), syscall.SIGKILL)) }, 1},
		{"the agent is killed", agent(syscall.SIGKILL), 1},
		{"the agent gets SIGTERM", agent(syscall.SIGTERM), 1},
		{"Ctrl-C", func(i *interrupted) { check(i.site.t, i.Process.Signal(syscall.SIGINT)) }, 130},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			i := s.startStopping(host, moment, s.between("tester", "--out", "run"))
			if !i.reached() {
				t.Fatalf("ended with %d\n%s", i.code(), i.err.String())
			}
			tt.act(i)
			i.goOn()
			if code := i.code(); code != tt.code {
				t.Errorf("exit code %d, want %d\n%s", code, tt.code, i.err.String())
			}
			s.nothingLeft(before)
		})
	}
}

// killShell kills the shell that waits for the agent.
func killShell(i *interrupted) {
	i.site.t.Helper()
	all := i.site.agents("db2")
	if len(all) != 2 {
		i.site.t.Fatalf("%d processes of the agent", len(all))
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", all[0]))
	check(i.site.t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	parent, err := strconv.Atoi(strings.Fields(rest)[1])
	check(i.site.t, err)
	check(i.site.t, syscall.Kill(parent, syscall.SIGKILL))
}

// setPort sets a port of the switch up or down.
func (s *site) setPort(name string, up bool) {
	s.t.Helper()
	l, err := link.Find(s.sw.NS, name)
	check(s.t, err)
	if up {
		check(s.t, l.Up())
		return
	}
	check(s.t, l.Down())
}

// nothingRuns waits until a machine has no agent.
func (s *site) nothingRuns(name string) {
	s.t.Helper()
	s.waitFor("the end of the agent", func() bool { return len(s.agents(name)) == 0 })
}
