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

// plan says what a bed is to be like.
type plan struct {
	outside  []int  // the family of each path, 4 or 6
	key      bool   // encrypted
	more     string // lines for both files
	rate     int64  // bit/s of each path; 0: as fast as it goes
	notReady bool   // newBed does not wait until the tunnel is up
}

// bed is two nodes that a tunnel joins, by cables with a switch in the middle of each:
// what happens to the switch the ends can't see.
type bed struct {
	t      *testing.T
	plan   plan
	ends   [2]*end
	middle []*lab.Switch

	families []int // of the paths, 4 or 6
}

// end is one end's node and process.
type end struct {
	t     *testing.T
	name  string
	node  *lab.Node
	file  string // its tunnel file
	proc  lab.Proc
	order *os.File
	reply *bufio.Reader
	close []*os.File
}

// inner is the address of an end in the tunnel.
func inner(i, family int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:ffff::%d", 1+i))
}

// innerNet is the same with the tunnel's prefix.
func innerNet(i, family int) netip.Prefix {
	return netip.PrefixFrom(inner(i, family), map[int]int{4: 30, 6: 64}[family])
}

// outer is the address of an end on a path.
func outer(i, path, family int) netip.Prefix {
	if family == 4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(4*path + 1 + i)}), 30)
	}
	return netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::%d/64", 1+path, 1+i))
}

// device is the name of a path and of its device on both nodes.
func device(path int) string { return fmt.Sprintf("p%d", path) }

// newBed makes the nodes and starts both ends. The test runs beside others: each bed has
// nodes of its own.
func newBed(t *testing.T, p plan) *bed {
	t.Helper()
	lab.Need(t)
	t.Parallel()
	b := &bed{t: t, plan: p}
	dir := t.TempDir()
	for i := range b.ends {
		name := []string{"left", "right"}[i]
		n, err := lab.NewNode(name)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		b.ends[i] = &end{t: t, name: name, node: n, file: filepath.Join(dir, name+".yaml")}
	}
	for path, family := range p.outside {
		b.addMiddle(path, family)
		for i := range b.ends {
			b.plug(i, path)
		}
	}
	b.writeFiles()
	for _, e := range b.ends {
		e.start()
	}
	if !p.notReady {
		b.ready()
	}
	return b
}

// addMiddle makes the switch of a path, beyond those planned, too.
func (b *bed) addMiddle(path, family int) {
	b.t.Helper()
	sw, err := lab.NewSwitch(fmt.Sprintf("middle%d", path), 1500)
	must(b.t, err)
	b.t.Cleanup(func() { sw.Close() })
	b.middle = append(b.middle, sw)
	b.families = append(b.families, family)
}

// plug gives an end the device of a path.
func (b *bed) plug(i, path int) {
	b.t.Helper()
	n := b.ends[i].node
	_, err := b.middle[path].Plug(lab.End{Node: n, Name: device(path)}, b.plan.rate)
	must(b.t, err)
	must(b.t, n.Address(device(path), outer(i, path, b.families[path])))
}

// writeFiles writes both tunnel files, and keys if there are to be any.
func (b *bed) writeFiles() {
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
		must(b.t, os.WriteFile(e.file, []byte(b.text(i, key)), 0o600))
	}
}

// text is an end's tunnel file.
func (b *bed) text(i int, key string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "name: lab\ndevice: tunnel0\naddress: [%s, \"%s\"]\n%s", innerNet(i, 4), innerNet(i, 6), key)
	if b.plan.more != "" {
		fmt.Fprintln(&s, strings.TrimSpace(b.plan.more))
	}
	s.WriteString("paths:\n")
	for path, family := range b.plan.outside {
		fmt.Fprintf(&s, "  - {device: %s, remote: %q}\n", device(path), outer(1-i, path, family).Addr())
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
	said, err := os.OpenFile(e.file+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(e.t, err)
	e.proc, err = e.node.Start(lab.Command{Args: []string{lab.Self, endArg, e.file}, Stdin: theirIn, Stdout: theirOut, Stderr: said})
	for _, f := range []*os.File{theirIn, theirOut, said} {
		f.Close()
	}
	must(e.t, err)
	e.order, e.reply, e.close = ourIn, bufio.NewReader(ourOut), []*os.File{ourIn, ourOut}
	e.t.Cleanup(func() {
		e.kill()
		if e.t.Failed() {
			text, _ := os.ReadFile(e.file + ".log")
			e.t.Logf("%s said:\n%s", e.name, text)
		}
	})
}

// kill ends the process with SIGKILL.
func (e *end) kill() {
	e.proc.Kill()
	_ = e.proc.Wait() // it was killed
	for _, f := range e.close {
		f.Close()
	}
}

// ask gives the end an order and is its answer.
func (e *end) ask(order string) string {
	e.t.Helper()
	_, err := fmt.Fprintln(e.order, order)
	must(e.t, err)
	line, err := e.reply.ReadString('\n')
	if err != nil {
		e.t.Fatalf("%s: order %q: %v", e.name, order, err)
	}
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "error:") {
		e.t.Fatalf("%s: order %q: %s", e.name, order, line)
	}
	return line
}

func (e *end) status() tunnel.Status {
	e.t.Helper()
	var s tunnel.Status
	must(e.t, json.Unmarshal([]byte(e.ask("status")), &s))
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

// wants waits until both ends use just these paths.
func (b *bed) wants(within time.Duration, paths ...int) {
	b.t.Helper()
	var want []string
	for _, p := range paths {
		want = append(want, device(p))
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
func (b *bed) all() []int {
	var all []int
	for path := range b.plan.outside {
		all = append(all, path)
	}
	return all
}

// ready waits until the tunnel is up with every path.
func (b *bed) ready() {
	b.t.Helper()
	b.wants(10*time.Second, b.all()...)
}

// blackhole has the switch of a path swallow everything, or pass it again. No device at
// the ends notices.
func (b *bed) blackhole(path int, on bool) {
	b.t.Helper()
	l, err := link.Find(b.middle[path].NS, "switch")
	must(b.t, err)
	if on {
		must(b.t, l.Down())
	} else {
		must(b.t, l.Up())
	}
}

// eventually waits for a fact.
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
