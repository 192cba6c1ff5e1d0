package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/networktest"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// killHostEnv marks the process that onOwnHost runs.
const killHostEnv = "CLEAT_TEST_KILL_HOST"

// Environment variables for longer runs, and to repeat one.
const (
	killCyclesEnv = "CLEAT_KILL_CYCLES" // number of cycles; default: 200
	killSeedEnv   = "CLEAT_KILL_SEED"
)

func numberFromEnv(t *testing.T, name string, fallback uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestKilledNetCommands kills commands of `cleat net`, the keeper, or both, at random moments.
// Containers vanish meanwhile. In the end nothing is left of all that, and whenever the commands
// are left alone, networks are as they should be.
func TestKilledNetCommands(t *testing.T) {
	onOwnHost(t, "it takes half a minute", killNetCommands)
}

// onOwnHost runs a test inside network, mount and process namespaces of its own, where "cleat" is the
// program and CLEAT_STATE_DIR is set.
func onOwnHost(t *testing.T, notShort string, test func(*testing.T)) {
	if os.Getenv(killHostEnv) != "" {
		test(t)
		return
	}
	if testing.Short() {
		t.Skip(notShort)
	}
	needPrograms(t, "unshare", "ip")
	if err := exec.Command(filepath.Join(binDir, "cleat"), "bench", "list").Run(); err != nil {
		t.Skip("no namespaces here")
	}
	cmd := exec.Command("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=0")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args[slices.Index(cmd.Args, "/proc/self/exe")] = self
	cmd.Env = append(os.Environ(), killHostEnv+"="+binDir, "CLEAT_STATE_DIR="+filepath.Join(t.TempDir(), "state"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// killHost is a host whose commands are killed.
type killHost struct {
	t        *testing.T
	r        *rand.Rand
	state    string
	outcomes map[string]int // how often commands ended so
}

var (
	killContainers = []string{"a", "b", "c", "d", "e"}
	killNetworks   = []string{"web", "far"}
	killSubnets    = []netip.Prefix{netip.MustParsePrefix("10.20.0.0/27"), netip.MustParsePrefix("fd00:20::/64"), netip.MustParsePrefix("10.21.0.0/27")}
)

func killNetCommands(t *testing.T) {
	cycles, seed := numberFromEnv(t, killCyclesEnv, 200), numberFromEnv(t, killSeedEnv, 1)
	t.Logf("%d cycles, seed %d", cycles, seed)
	mountRun(t)
	for _, conf := range []string{"all", "default"} { // the kernel gives links no addresses, which would come later
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/addr_gen_mode", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	h := &killHost{t: t, r: rand.New(rand.NewPCG(seed, 11)), state: os.Getenv("CLEAT_STATE_DIR"), outcomes: map[string]int{}}
	h.do("ip", "link", "set", "lo", "up")
	for _, name := range killContainers {
		h.do("ip", "netns", "add", name)
	}
	h.net("create", "web", "--subnet", "10.20.0.0/27", "--subnet", "fd00:20::/64")
	h.net("create", "far", "--driver", "routed", "--subnet", "10.21.0.0/27")
	h.net("deny", "web/a", "to", "web/b:80")
	for _, network := range killNetworks { // so that what remains of a first connection is there
		for _, name := range killContainers {
			h.net("connect", network, name, "-p", "81")
			h.net("disconnect", network, name)
		}
	}
	before, flowsBefore := h.snapshot(), h.connections()
	for i := range cycles {
		h.cycle()
		if i%100 == 99 {
			h.settle()
		}
	}
	h.settle()
	for _, network := range killNetworks {
		for _, name := range killContainers {
			_ = exec.Command("cleat", "net", "disconnect", network, name).Run() // fails if it is not connected
		}
	}
	h.settle()
	deadline := time.Now().Add(20 * time.Second)
	after := h.snapshot()
	for ; !slices.Equal(before, after) && time.Now().Before(deadline); after = h.snapshot() {
		time.Sleep(50 * time.Millisecond)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("something is left, or was lost (-before +after):\n%s", diff)
	}
	log, err := os.ReadFile(filepath.Join(h.state, "keeper.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "which is not connected") || strings.Contains(line, "which does not publish it") {
			t.Errorf("a claim leaked, and the keeper found it: %s", line)
		}
	}
	if flows := h.connections(); flows > flowsBefore {
		t.Errorf("%d connections are tracked, %d before", flows, flowsBefore)
	}
	t.Logf("outcomes: %v", h.outcomes)
	for _, o := range []string{"killed", "killed with its keeper", "killed without a keeper", "succeeded", "refused"} {
		if h.outcomes[o] == 0 {
			t.Errorf("no command was %s", o)
		}
	}
}

// mountRun keeps the names of namespaces apart from those of the machine.
func mountRun(t *testing.T) {
	if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
}

// settle has all containers there, and a keeper that runs. It checks that the networks are then as
// they should be, without a repair.
func (h *killHost) settle() {
	h.t.Helper()
	h.bringBack()
	h.net("create", "other", "--subnet", "10.22.0.0/30") // it starts a keeper
	h.net("rm", "other")
	deadline := time.Now().Add(20 * time.Second)
	for {
		out, err := exec.Command("cleat", "net", "check").CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("networks are not as they should be: %s", out)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (h *killHost) do(program string, args ...string) {
	h.t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		h.t.Fatalf("%s %q: %v: %s", program, args, err, out)
	}
}

func (h *killHost) net(args ...string) {
	h.t.Helper()
	h.do("cleat", append([]string{"net"}, args...)...)
}

// cycle does a random thing, and perhaps kills the command that does it.
func (h *killHost) cycle() {
	name, network := killContainers[h.r.IntN(len(killContainers))], killNetworks[h.r.IntN(len(killNetworks))]
	port := fmt.Sprint(8000+h.r.IntN(6), ":80")
	switch n := h.r.IntN(20); {
	case n < 13 && !h.connected(network, name):
		h.kill("connect", network, name, "-p", port, "--alias", "any")
	case n < 13:
		h.kill("disconnect", network, name)
	case n < 15:
		h.kill("publish", name, port, "--network", network)
	case n < 16:
		h.kill("unpublish", name, "--network", network)
	case n < 17:
		h.kill("deny", "web/"+name, "to", "10.99.0.0/16")
		h.kill("deny", "--remove", "web/"+name, "to", "10.99.0.0/16")
	case n < 18:
		h.kill("prune")
	case n < 19:
		_ = exec.Command("ip", "netns", "delete", name).Run() // it may have vanished already
	default:
		h.bringBack()
	}
}

// connected reports whether a container has an endpoint.
func (h *killHost) connected(network, name string) bool {
	found, _ := filepath.Glob(filepath.Join(h.state, "networks", network, "endpoints", "*"+name+".json"))
	return len(found) > 0
}

// kill runs a command and kills it at a random moment, which may be after its end; or its keeper
// with it; or the keeper before it.
func (h *killHost) kill(args ...string) {
	how := "killed"
	switch h.r.IntN(4) {
	case 0:
		how = "killed with its keeper"
	case 1:
		how = "killed without a keeper"
		h.killKeeper()
	}
	// By then, most commands have ended that a keeper runs, and those that run by themselves.
	longest := []time.Duration{15 * time.Millisecond, 60 * time.Millisecond}[h.r.IntN(2)]
	cmd := exec.Command("cleat", append([]string{"net"}, args...)...)
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	time.Sleep(time.Duration(h.r.Int64N(int64(longest)))) // this waits for nothing: it sets the moment
	if how == "killed with its keeper" {
		h.killKeeper()
	}
	_ = cmd.Process.Kill() // fails if it has ended
	var exit *exec.ExitError
	switch err := cmd.Wait(); {
	case err == nil:
		how = "succeeded"
	case errors.As(err, &exit) && exit.Exited():
		how = "refused"
	}
	h.outcomes[how]++
}

func (h *killHost) killKeeper() {
	if pid := h.keeper(); pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// keeper returns the process id of the keeper; 0 if none runs.
func (h *killHost) keeper() int {
	f, err := os.Open(filepath.Join(h.state, "keeper.lock"))
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0
	}
	text := make([]byte, 32)
	n, _ := f.Read(text)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return pid
}

// bringBack makes all containers that have vanished.
func (h *killHost) bringBack() {
	for _, name := range killContainers {
		_ = exec.Command("ip", "netns", "add", name).Run() // fails if it is there
	}
}

// changing matches what is random in lines of a snapshot.
var changing = regexp.MustCompile(`\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b|veth[0-9a-z]{11}`)

// snapshot returns all that commands could leave: in the kernel, in files, and as processes with
// their open files.
func (h *killHost) snapshot() []string {
	t := h.t
	t.Helper()
	host, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	var out []string
	for _, line := range networktest.Netlink(t, host) {
		out = append(out, changing.ReplaceAllString(line, "X"))
	}
	for _, line := range h.elements() {
		out = append(out, "nft "+line)
	}
	for _, name := range killContainers {
		ns, err := netns.Open("/run/netns/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range networktest.Netlink(t, ns) {
			if !strings.Contains(line, " lo ") { // it is up or not
				out = append(out, name+" "+line)
			}
		}
		ns.Close()
	}
	for _, line := range networktest.Files(t, h.state) {
		file, _, _ := strings.Cut(strings.TrimPrefix(line, "file "), " ")
		if !strings.HasPrefix(filepath.Base(file), ".") { // hints and notes about addresses
			out = append(out, "file "+file)
		}
	}
	out = append(out, programs()...)
	slices.Sort(out)
	return append(out, h.openFiles())
}

// elements returns all of nftables, elements of sets too, without handles and counters.
func (h *killHost) elements() []string {
	out, err := exec.Command("nft", "--stateless", "list", "ruleset").Output()
	if err != nil {
		return nil // without nft, networktest has chains and numbers of rules
	}
	return strings.Split(string(out), "\n")
}

// connections returns the number of tracked connections of addresses of the networks.
func (h *killHost) connections() (n int) {
	host, err := netns.Current()
	if err != nil {
		h.t.Fatal(err)
	}
	defer host.Close()
	handle, err := link.Handle(host)
	if err != nil {
		h.t.Fatal(err)
	}
	defer handle.Close()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := handle.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			h.t.Fatal(err)
		}
		n += len(slices.DeleteFunc(flows, func(f *netlink.ConntrackFlow) bool { return !ofKillNetworks(f) }))
	}
	return n
}

// ofKillNetworks reports whether a connection has an address of the networks.
func ofKillNetworks(f *netlink.ConntrackFlow) bool {
	return slices.ContainsFunc([]net.IP{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP}, func(ip net.IP) bool {
		a, ok := netip.AddrFromSlice(ip)
		return ok && slices.ContainsFunc(killSubnets, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
	})
}

// programs returns the command lines of all processes.
func programs() []string {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var all []string
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			all = append(all, "process "+strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return all
}

// openFiles counts the open files of the name server, which outlives keepers. Two sockets for each
// of three gateways are among them.
func (h *killHost) openFiles() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if pid := nameServer(); pid != 0 {
			files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
			return fmt.Sprintf("%d open files of the name server", len(files))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "no name server"
}

// nameServer returns the process id of the name server; 0 if none runs.
func nameServer() int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "net\x00serve-names") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	return 0
}
