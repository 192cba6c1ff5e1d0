package endpoint_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/tunnel"
	"cleat/tunnel/secure"
)

// topology describes a testbed.
type topology struct {
	outside  []int  // of each path, 4 or 6
	key      bool   // encrypted
	more     string // lines for both files
	rate     int64  // bit/s of each path; 0: unlimited
	notReady bool   // newTestbed does not wait until the tunnel is up
}

// testbed is two nodes connected by a tunnel. The cable of each path has a switch in the
// middle, so that the ends don't see what happens there.
type testbed struct {
	t      *testing.T
	plan   topology
	ends   [2]*end
	middle []*lab.Switch

	families []int // of the paths, 4 or 6
}

// end is the node and process of one end.
type end struct {
	t        *testing.T
	name     string
	node     *lab.Node
	file     string // its tunnel file
	proc     lab.Proc
	commands *os.File
	reply    *bufio.Reader
	close    []*os.File
}

// innerAddr returns the address of an end in the tunnel.
func innerAddr(i, family int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:ffff::%d", 1+i))
}

// innerNet returns the same with the tunnel's prefix.
func innerNet(i, family int) netip.Prefix {
	return netip.PrefixFrom(innerAddr(i, family), map[int]int{4: 30, 6: 64}[family])
}

// outerPrefix returns the address of an end on a path.
func outerPrefix(i, path, family int) netip.Prefix {
	if family == 4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(4*path + 1 + i)}), 30)
	}
	return netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::%d/64", 1+path, 1+i))
}

// deviceName returns the name of a path and of its device on both nodes.
func deviceName(path int) string { return fmt.Sprintf("p%d", path) }

// newTestbed makes the nodes and starts both ends. The test runs in parallel: each
// testbed has its own nodes.
func newTestbed(t *testing.T, p topology) *testbed {
	t.Helper()
	lab.Need(t)
	t.Parallel()
	b := &testbed{t: t, plan: p}
	dir := t.TempDir()
	for i := range b.ends {
		name := []string{"left", "right"}[i]
		n, err := lab.NewNode(name)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		b.ends[i] = &end{t: t, name: name, node: n, file: filepath.Join(dir, name+".yaml")}
	}
	for path, family := range p.outside {
		b.addSwitch(path, family)
		for i := range b.ends {
			b.addPathDevice(i, path)
		}
	}
	b.writeFiles()
	for _, e := range b.ends {
		e.start()
	}
	if !p.notReady {
		b.waitReady()
	}
	return b
}

// addSwitch makes the switch of a path, which may be an additional one.
func (b *testbed) addSwitch(path, family int) {
	b.t.Helper()
	sw, err := lab.NewSwitch(fmt.Sprintf("middle%d", path), 1500)
	must(b.t, err)
	b.t.Cleanup(func() { sw.Close() })
	b.middle = append(b.middle, sw)
	b.families = append(b.families, family)
}

// addPathDevice gives an end the device of a path.
func (b *testbed) addPathDevice(i, path int) {
	b.t.Helper()
	n := b.ends[i].node
	_, err := b.middle[path].Plug(lab.End{Node: n, Name: deviceName(path)}, b.plan.rate)
	must(b.t, err)
	must(b.t, n.Address(deviceName(path), outerPrefix(i, path, b.families[path])))
}

// writeFiles writes both tunnel files, and keys if wanted.
func (b *testbed) writeFiles() {
	b.t.Helper()
	var keys [2]secure.PrivateKey
	for i, e := range b.ends {
		var err error
		keys[i], err = secure.GenerateKey()
		must(b.t, err)
		must(b.t, os.WriteFile(e.file+".key", []byte(keys[i].Text()+"\n"), 0o600))
	}
	for i, e := range b.ends {
		key := ""
		if b.plan.key {
			key = fmt.Sprintf("key: {private: %q, peer: %q}\n", e.file+".key", keys[1-i].Public())
		}
		must(b.t, os.WriteFile(e.file, []byte(b.fileText(i, key)), 0o600))
	}
}

// fileText returns an end's tunnel file.
func (b *testbed) fileText(i int, key string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "name: lab\ndevice: tunnel0\naddress: [%s, \"%s\"]\n%s", innerNet(i, 4), innerNet(i, 6), key)
	if b.plan.more != "" {
		fmt.Fprintln(&s, strings.TrimSpace(b.plan.more))
	}
	s.WriteString("paths:\n")
	for path, family := range b.plan.outside {
		fmt.Fprintf(&s, "  - {device: %s, remote: %q}\n", deviceName(path), outerPrefix(1-i, path, family).Addr())
	}
	return s.String()
}

// start starts an end's process.
func (e *end) start() {
	e.t.Helper()
	theirIn, ourIn, err := os.Pipe()
	must(e.t, err)
	ourOut, theirOut, err := os.Pipe()
	must(e.t, err)
	log, err := os.OpenFile(e.file+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(e.t, err)
	e.proc, err = e.node.Start(lab.Command{Args: []string{lab.Self, endArg, e.file}, Stdin: theirIn, Stdout: theirOut, Stderr: log})
	for _, f := range []*os.File{theirIn, theirOut, log} {
		f.Close()
	}
	must(e.t, err)
	e.commands, e.reply, e.close = ourIn, bufio.NewReader(ourOut), []*os.File{ourIn, ourOut}
	e.t.Cleanup(func() {
		e.kill()
		if e.t.Failed() {
			text, _ := os.ReadFile(e.file + ".log")
			e.t.Logf("%s said:\n%s", e.name, text)
		}
	})
}

// kill kills the process with SIGKILL.
func (e *end) kill() {
	e.proc.Kill()
	_ = e.proc.Wait() // an error, because it was killed
	for _, f := range e.close {
		f.Close()
	}
}

// command sends the end a command and returns its answer.
func (e *end) command(command string) string {
	e.t.Helper()
	_, err := fmt.Fprintln(e.commands, command)
	must(e.t, err)
	line, err := e.reply.ReadString('\n')
	if err != nil {
		e.t.Fatalf("%s: command %q: %v", e.name, command, err)
	}
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "error:") {
		e.t.Fatalf("%s: command %q: %s", e.name, command, line)
	}
	return line
}

func (e *end) status() tunnel.Status {
	e.t.Helper()
	var s tunnel.Status
	must(e.t, json.Unmarshal([]byte(e.command("status")), &s))
	return s
}

// live lists the paths in use.
func (e *end) live() []string {
	e.t.Helper()
	var names []string
	for _, p := range e.status().Paths {
		if p.Live {
			names = append(names, p.Name)
		}
	}
	return names
}

// link finds one of the end's devices.
func (e *end) link(name string) *link.Link {
	e.t.Helper()
	l, err := link.Find(e.node.NS, name)
	must(e.t, err)
	return l
}

// waitPaths waits until both ends use exactly these paths.
func (b *testbed) waitPaths(within time.Duration, paths ...int) {
	b.t.Helper()
	var want []string
	for _, p := range paths {
		want = append(want, deviceName(p))
	}
	for _, e := range b.ends {
		var got []string
		eventually(b.t, within, func() bool {
			got = e.live()
			return slices.Equal(got, want)
		}, func() string { return fmt.Sprintf("%s uses paths %v, want %v", e.name, got, want) })
	}
}

// all lists all paths.
func (b *testbed) allPaths() []int {
	var all []int
	for path := range b.plan.outside {
		all = append(all, path)
	}
	return all
}

// waitReady waits until the tunnel is up with every path.
func (b *testbed) waitReady() {
	b.t.Helper()
	b.waitPaths(10*time.Second, b.allPaths()...)
}

// blackhole makes the switch of a path drop everything, or stops that. No device at the
// ends notices.
func (b *testbed) blackhole(path int, on bool) {
	b.t.Helper()
	l, err := link.Find(b.middle[path].NS, "switch")
	must(b.t, err)
	if on {
		must(b.t, l.Down())
	} else {
		must(b.t, l.Up())
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, within time.Duration, is func() bool, want func() string) {
	t.Helper()
	for end := time.Now().Add(within); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s: %s", within, want())
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
