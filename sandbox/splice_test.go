package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"cleat/sandbox"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// runSpliced runs a guest in the splice tier and returns its output and the final
// counters.
func runSpliced(t *testing.T, cfg sandbox.Config, name string, args ...string) (string, sandbox.Stats) {
	t.Helper()
	cfg.Tier, cfg.MapRoot = sandbox.TierSplice, true
	n := newNetwork(t, cfg)
	cmd, out := guest(testContext(t), name, args...)
	if err := n.Exec(testContext(t), cmd); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if tier, reason := n.Tier(); tier != sandbox.TierSplice || reason != "" {
		t.Errorf("tier %q, reason %q; want %q", tier, reason, sandbox.TierSplice)
	}
	return strings.TrimSpace(out.String()), n.Stats()
}

func TestSpliceTier(t *testing.T) {
	fakeInternet(t)
	for _, outside := range []string{outside4, outside6} {
		t.Run(outside, func(t *testing.T) {
			server := serveTCP(t, outside, "hello", false)
			closed := closedPort(t, outside)
			got, stats := runSpliced(t, sandbox.Config{}, "dial", "tcp", server.String(), closed.String(), server.String())
			if want := "hello\nECONNREFUSED\nhello"; got != want {
				t.Errorf("the guest printed %q, want %q", got, want)
			}
			if stats.Spliced != 2 || stats.TCPFlows != 3 || stats.Returned != 0 || stats.Intruders != 0 {
				t.Errorf("counters %+v", stats)
			}
		})
	}
}

// closedPort returns a port that nobody listens on.
func closedPort(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestSpliceTierEchoes(t *testing.T) {
	fakeInternet(t)
	for _, mtu := range []int{1500, 65520} {
		server := serveTCP(t, outside4, "", true)
		if got, stats := runSpliced(t, sandbox.Config{MTU: mtu}, "echo", server.String()); got != "same" || stats.Spliced != 1 || stats.SplicedOutBytes != 8<<20 {
			t.Errorf("MTU %d: the guest printed %q; counters %+v", mtu, got, stats)
		}
	}
}

// A client of a forward reaches the guest's server without the device, and keeps its
// address.
func TestSpliceTierForwards(t *testing.T) {
	fakeInternet(t)
	for _, outside := range []string{outside4, outside6} {
		t.Run(outside, func(t *testing.T) {
			port := closedPort(t, outside)
			to := netip.AddrPortFrom(netip.Addr{}, 8000)
			n := newNetwork(t, sandbox.Config{Tier: sandbox.TierSplice, Forwards: []sandbox.Forward{{Protocol: sandbox.TCP, Listen: port, To: to}}})
			s := startGuest(t, n.Exec, "serve", "tcp/:8000")
			c, err := net.Dial("tcp", port.String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			got, err := io.ReadAll(c)
			// the client's address, which the guest does not have
			if want := "tcp from " + outside; err != nil || string(got) != want {
				t.Errorf("the client received %q, error %v; want %q", got, err, want)
			}
			c.Close()
			if err := <-s.result; err != nil {
				t.Error(err)
			}
			if stats := n.Stats(); stats.Spliced != 1 {
				t.Errorf("counters %+v", stats)
			}
		})
	}
}

// addDroppingRules adds rules that run before ours and drop the SYNs for our listener.
// Then it dials.
func addDroppingRules(args []string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "own", Family: nftables.TableFamilyIPv4})
	first := nftables.ChainPriority(-1000)
	chain := c.AddChain(&nftables.Chain{Name: "pre", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: &first})
	// Packets from the device with the guest's own address.
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte("cleat0"), make([]byte, 10)...)},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{10, 0, 2, 100}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	if err := c.Flush(); err != nil {
		return err
	}
	return dial(args)
}

// If the namespace's own rules keep connections from the listener, the device carries
// them.
func TestSpliceTierWithGuestRules(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false).String()
	got, stats := runSpliced(t, sandbox.Config{}, "add-dropping-rules", "tcp", server, server, server, server)
	if got != "hello\nhello\nhello\nhello" {
		t.Errorf("the guest printed %q", got)
	}
	if stats.Spliced != 0 || stats.TCPFlows != 4 {
		t.Errorf("counters %+v", stats)
	}
}

// flushRules removes all rules that it can, and dials.
func flushRules(args []string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.FlushRuleset()
	if err := c.Flush(); err != nil {
		return err
	}
	return dial(args)
}

// The guest can't remove our rules.
func TestSpliceTierSurvivesFlush(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false).String()
	got, stats := runSpliced(t, sandbox.Config{}, "flush-rules", "tcp", server)
	if got != "hello" || stats.Spliced != 1 {
		t.Errorf("the guest printed %q; counters %+v", got, stats)
	}
}

// intrude connects to every listener on the namespace's loopback, ours among them, and
// prints the results.
func intrude([]string) error {
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		var slot, ip, port, rip, rport, state uint64
		if n, _ := fmt.Sscanf(strings.ReplaceAll(line, ":", " "), "%d %x %x %x %x %x", &slot, &ip, &port, &rip, &rport, &state); n != 6 || state != 10 {
			continue
		}
		output, err := ask("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		fmt.Printf("%q %v\n", output, errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF))
	}
	return nil
}

// A connection to our listener that we did not steer there is reset.
func TestSpliceTierResetsIntruders(t *testing.T) {
	fakeInternet(t)
	got, stats := runSpliced(t, sandbox.Config{}, "intrude")
	if got != `"" true` || stats.Intruders != 1 || stats.TCPFlows != 0 {
		t.Errorf("the guest printed %q; counters %+v", got, stats)
	}
}

// tables prints the number of nftables tables, waits, and prints it again.
func tables([]string) error {
	fmt.Println("ready")
	list := func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := c.ListTables()
		fmt.Println(len(all))
		return err
	}
	if err := list(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return list()
}

// If the host side is killed, the rules disappear.
func TestSpliceTierLeavesNoRules(t *testing.T) {
	fakeInternet(t)
	cmd, _ := guest(testContext(t), "host-side-of-tables")
	stdin, input := pipe(t)
	output, stdout := pipe(t)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	stdout.Close()
	lines := bufio.NewReader(output)
	for _, want := range []string{"ready\n", "2\n"} {
		if got, err := lines.ReadString('\n'); got != want {
			t.Fatalf("the command printed %q (%v), want %q", got, err, want)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	input.Close()
	if got, err := lines.ReadString('\n'); got != "0\n" {
		t.Errorf("the command printed %q tables (%v), want 0", got, err)
	}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func hostSideOfTables([]string) error {
	n, err := sandbox.New(sandbox.Config{Tier: sandbox.TierSplice, MapRoot: true})
	if err != nil {
		return err
	}
	ctx := context.Background()
	cmd, _ := guest(ctx, "tables")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return n.Exec(ctx, cmd)
}

// With a capture the device carries all connections.
func TestTierWithCapture(t *testing.T) {
	fakeInternet(t)
	if _, err := sandbox.New(sandbox.Config{Tier: sandbox.TierSplice, Pcap: io.Discard}); err == nil {
		t.Error("New accepts a capture with the splice tier")
	}
	server := serveTCP(t, outside4, "hello", false).String()
	n := newNetwork(t, sandbox.Config{Pcap: io.Discard})
	cmd, out := guest(testContext(t), "dial", "tcp", server)
	if err := n.Exec(testContext(t), cmd); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if s := n.Stats(); s.Spliced != 0 || s.TCPFlows != 1 {
		t.Errorf("counters %+v", s)
	}
}
