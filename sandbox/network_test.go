package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

func TestUserNamespacesDisabled(t *testing.T) {
	fakeInternet(t)
	const limit = "/proc/sys/user/max_user_namespaces"
	before, err := os.ReadFile(limit)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
		t.Skip("limit namespaces: ", err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(limit, before, 0); err != nil {
			t.Error(err)
		}
	})
	cmd, _ := guest(testContext(t), "fds")
	err = newNetwork(t, sandbox.Config{}).Exec(testContext(t), cmd)
	var setup *sandbox.SetupError
	if !errors.As(err, &setup) || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got error %v, want ENOSPC", err)
	}
	if !strings.HasPrefix(setup.Hint(), "sudo sysctl user.max_user_namespaces=") {
		t.Errorf("hint %q", setup.Hint())
	}
}

// A network closes all that it opened, however it ends.
func TestNoDescriptorIsLeaked(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	rounds := []func(){
		func() {
			cfg := sandbox.Config{
				AutoForward: []sandbox.AutoForward{{TCP: true}}, AutoReverseForward: []sandbox.AutoForward{{TCP: true, UDP: true}},
				ReverseForwards: []sandbox.ReverseForward{{Protocol: sandbox.TCP, Listen: toPort(80), To: toPort(server.Port())}},
				Forwards:        []sandbox.Forward{{Protocol: sandbox.UDP, Listen: netip.MustParseAddrPort(outside4 + ":0"), To: toPort(80)}},
			}
			runGuest(t, cfg, "dial", "tcp", server.String())
		},
		func() { // fails in the namespace
			cmd, _ := guest(testContext(t), "fds")
			_ = newNetwork(t, sandbox.Config{Interface: "lo"}).Exec(testContext(t), cmd)
		},
		func() { // never started
			n := newNetwork(t, sandbox.Config{})
			cmd, _ := guest(testContext(t), "fds")
			if err := errors.Join(n.Wrap(cmd), n.Close()); err != nil {
				t.Error(err)
			}
		},
		func() { // prepared and never run: the command exits
			n := newNetwork(t, sandbox.Config{})
			cmd, _ := guest(testContext(t), "fds")
			if err := errors.Join(n.Wrap(cmd), cmd.Start(), n.Prepare(testContext(t)), n.Close()); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 125 {
				t.Errorf("the command exited with %v, want exit code 125", err)
			}
		},
		func() { // joins a namespace and leaves it
			p := startNSProcess(t, unix.CLONE_NEWUSER|unix.CLONE_NEWNET)
			n := newNetwork(t, sandbox.Config{})
			if err := n.Join(testContext(t), sandbox.Namespace{PID: p.cmd.Process.Pid}); err != nil {
				t.Error(err)
			}
			n.Close()
			p.stdin.Close()
			p.cmd.Wait()
		},
	}
	for _, round := range rounds {
		round() // opens what package net and the runtime keep open
	}
	before := countDescriptors(t)
	for _, round := range rounds {
		round()
	}
	// There may be fewer: package net closes pipes that it kept for splice.
	for kind, n := range countDescriptors(t) {
		if n > before[kind] {
			t.Errorf("%d descriptors of type %s, %d before", n, kind, before[kind])
		}
	}
}

// countDescriptors counts descriptors by type. It leaves out sockets: those of the test's
// servers come and go.
func countDescriptors(t *testing.T) map[string]int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if kind, _, _ := strings.Cut(to, ":["); err == nil && kind != "socket" && !strings.HasPrefix(to, "/proc") {
			count[kind]++
		}
	}
	return count
}

type recordingPolicy struct {
	policyFunc
	mu    sync.Mutex
	flows []string
}

func (p *recordingPolicy) JudgeNamed(f sandbox.Flow, names []string) sandbox.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows = append(p.flows, fmt.Sprint(f.Destination.Addr(), names))
	return sandbox.Verdict{}
}

// Policy and Hook get the name by which the guest found an address.
func TestNames(t *testing.T) {
	fakeInternet(t)
	server := serveTCP(t, outside4, "hello", false)
	resolver := serveDNS(t, "127.0.0.1", func(q dnsmessage.Question) []dnsmessage.ResourceBody {
		if !strings.EqualFold(q.Name.String(), "www.example.com.") || q.Type != dnsmessage.TypeA {
			return nil
		}
		return []dnsmessage.ResourceBody{&dnsmessage.AResource{A: netip.MustParseAddr(outside4).As4()}}
	})
	p := &recordingPolicy{}
	hooked := make(chan string, 1)
	cfg := sandbox.Config{
		DNS: sandbox.DNS{Servers: []netip.AddrPort{resolver}}, Policy: p,
		Hook: func(_ context.Context, f sandbox.Flow, names []string) sandbox.Verdict {
			hooked <- fmt.Sprint(names)
			return sandbox.Verdict{}
		},
	}
	if got := runGuest(t, cfg, "dial", "tcp4", fmt.Sprintf("www.example.com:%d", server.Port())); got != "hello" {
		t.Errorf("the guest printed %q", got)
	}
	if got := <-hooked; got != "[www.example.com]" {
		t.Errorf("the hook got names %s", got)
	}
	if d := cmp.Diff([]string{outside4 + " [www.example.com]"}, p.flows); d != "" {
		t.Error(d)
	}
}
