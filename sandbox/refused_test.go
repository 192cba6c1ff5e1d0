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

func TestUserNamespacesRefused(t *testing.T) {
	world(t)
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
	cmd, _ := guest(patience(t), "fds")
	err = newNetwork(t, sandbox.Config{}).Exec(patience(t), cmd)
	var setup *sandbox.SetupError
	if !errors.As(err, &setup) || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("error %v", err)
	}
	if !strings.HasPrefix(setup.Hint(), "sudo sysctl user.max_user_namespaces=") {
		t.Errorf("hint %q", setup.Hint())
	}
}

// What a network opened is closed when it is done, whatever happened.
func TestNoDescriptorIsLeaked(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	rounds := []func(){
		func() {
			cfg := sandbox.Config{
				AutoForward: []sandbox.AutoForward{{TCP: true}}, AutoReverseForward: []sandbox.AutoForward{{TCP: true, UDP: true}},
				ReverseForwards: []sandbox.ReverseForward{{Protocol: sandbox.TCP, Listen: to(80), To: to(server.Port())}},
				Forwards:        []sandbox.Forward{{Protocol: sandbox.UDP, Listen: netip.MustParseAddrPort(outside4 + ":0"), To: to(80)}},
			}
			run(t, cfg, "dial", "tcp", server.String())
		},
		func() { // cannot begin
			cmd, _ := guest(patience(t), "fds")
			_ = newNetwork(t, sandbox.Config{Interface: "lo"}).Exec(patience(t), cmd)
		},
		func() { // never started
			n := newNetwork(t, sandbox.Config{})
			cmd, _ := guest(patience(t), "fds")
			if err := errors.Join(n.Wrap(cmd), n.Close()); err != nil {
				t.Error(err)
			}
		},
		func() { // prepared, and never run: the command ends by itself
			n := newNetwork(t, sandbox.Config{})
			cmd, _ := guest(patience(t), "fds")
			if err := errors.Join(n.Wrap(cmd), cmd.Start(), n.Prepare(patience(t)), n.Close()); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 125 {
				t.Errorf("the command ended with %v", err)
			}
		},
		func() { // a namespace that is joined and left
			l := newLodger(t, unix.CLONE_NEWUSER|unix.CLONE_NEWNET)
			n := newNetwork(t, sandbox.Config{})
			if err := n.Join(patience(t), sandbox.Namespace{PID: l.cmd.Process.Pid}); err != nil {
				t.Error(err)
			}
			n.Close()
			l.stdin.Close()
			l.cmd.Wait()
		},
	}
	for _, round := range rounds {
		round() // what package net and the runtime keep is opened now
	}
	before := openFiles(t)
	for _, round := range rounds {
		round()
	}
	// Fewer there may be: package net drops pipes that it kept for splice.
	for kind, n := range openFiles(t) {
		if n > before[kind] {
			t.Errorf("%d descriptors of kind %s, %d before", n, kind, before[kind])
		}
	}
}

// openFiles counts descriptors by what they are. Sockets of the answering
// servers come and go by themselves.
func openFiles(t *testing.T) map[string]int {
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

type namePolicy struct {
	policyFunc
	mu   sync.Mutex
	seen []string
}

func (p *namePolicy) JudgeNamed(f sandbox.Flow, names []string) sandbox.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, fmt.Sprint(f.Destination.Addr(), names))
	return sandbox.Verdict{}
}

// Policy and hook get the name by which the guest found an address.
func TestNames(t *testing.T) {
	world(t)
	server := answerTCP(t, outside4, "hello", false)
	resolver := answerDNS(t, "127.0.0.1", func(q dnsmessage.Question) []dnsmessage.ResourceBody {
		if !strings.EqualFold(q.Name.String(), "www.example.com.") || q.Type != dnsmessage.TypeA {
			return nil
		}
		return []dnsmessage.ResourceBody{&dnsmessage.AResource{A: netip.MustParseAddr(outside4).As4()}}
	})
	p := &namePolicy{}
	hooked := make(chan string, 1)
	cfg := sandbox.Config{
		DNS: sandbox.DNS{Servers: []netip.AddrPort{resolver}}, Policy: p,
		Hook: func(_ context.Context, f sandbox.Flow, names []string) sandbox.Verdict {
			hooked <- fmt.Sprint(names)
			return sandbox.Verdict{}
		},
	}
	if got := run(t, cfg, "dial", "tcp4", fmt.Sprintf("www.example.com:%d", server.Port())); got != "hello" {
		t.Errorf("got %q", got)
	}
	if got := <-hooked; got != "[www.example.com]" {
		t.Errorf("the hook got %s", got)
	}
	if d := cmp.Diff([]string{outside4 + " [www.example.com]"}, p.seen); d != "" {
		t.Error(d)
	}
}
