package bgp_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/network/bgp"
)

// TestRunEnds has a speaker in this process: Run returns, and leaves no goroutine behind.
func TestRunEnds(t *testing.T) { // not in parallel: it counts goroutines
	node := segment(t, "host")[0]
	for _, c := range []struct {
		name string
		port uint16
		call bool // Announce
		want string
	}{
		{"before it has begun", 0, false, ""},
		{"without its peers", 0, true, ""},
		{"as it listens", 17900, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			s, err := bgp.New(bgp.Config{RouterID: addr("192.0.2.1"), AS: 65001, Port: c.port, Sink: &bgp.Kernel{NS: node.NS},
				Peers: []bgp.Peer{{Address: addr("198.51.100.254"), AS: 65000, BFD: true}}})
			must(t, err)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			if c.call {
				s.Announce([]netip.Prefix{prefix("10.64.1.0/26")})
				eventually(t, func() error {
					if p := s.State()[0]; !strings.Contains(p.Error, "unreachable") {
						return fmt.Errorf("state is %+v", p)
					}
					return nil
				})
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			eventually(t, func() error {
				if now := runtime.NumGoroutine(); now > before {
					all := make([]byte, 1<<16)
					return fmt.Errorf("%d goroutines, %d before:\n%s", now, before, all[:runtime.Stack(all, true)])
				}
				return nil
			})
		})
	}
}

// TestBusyPort has a speaker whose port somebody else has.
func TestBusyPort(t *testing.T) {
	t.Parallel()
	nodes := segment(t, "host")
	cfg := &settings{RouterID: addr("192.0.2.1"), AS: 65001, Port: 179, Peers: []bgp.Peer{{Address: addr("192.0.2.2"), AS: 65000}}}
	newSpeaker(t, nodes[0], order{Config: cfg, Announce: prefixes("10.64.1.0/26")})
	busy(t, nodes[0])
	second := newSpeaker(t, nodes[0], order{Config: cfg})
	second.send(order{Announce: prefixes("10.64.1.0/26")})
	if err := second.proc.Wait(); err == nil {
		t.Error("the second speaker has not failed")
	}
	text, err := os.ReadFile(second.log)
	if err != nil || !strings.Contains(string(text), "address already in use") {
		t.Errorf("log is %s, %v", text, err)
	}
}

// busy waits until somebody listens for BGP.
func busy(t *testing.T, node *lab.Node) {
	t.Helper()
	eventually(t, func() error {
		return node.NS.Do(func() error {
			c, err := net.Dial("tcp", "192.0.2.1:179")
			if err == nil {
				c.Close()
			}
			return err
		})
	})
}
