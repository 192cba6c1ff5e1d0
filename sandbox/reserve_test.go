package sandbox_test

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"cleat/dns"
	"cleat/sandbox"
	"cleat/sandbox/control"

	"golang.org/x/sys/unix"
)

// descriptors counts those that are open, the one that reading the directory takes among them.
func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// What the ledger leaves of the limit of open files is enough for all that is not charged to
// it: what a Network opens for itself after New, the look-ups of names in rules, the control
// socket and its clients, and one file that is read again.
func TestReservedDescriptorsAreEnough(t *testing.T) {
	world(t)
	for _, c := range []struct {
		name string
		cfg  sandbox.Config
	}{
		{"plain", sandbox.Config{}},
		{"with automatic ports", sandbox.Config{
			AutoForward: []sandbox.AutoForward{{TCP: true, UDP: true}},
			Forwards:    []sandbox.Forward{{Protocol: sandbox.UDP, Listen: netip.MustParseAddrPort(outside4 + ":0"), To: to(80)}},
		}},
		{"several queues", sandbox.Config{Queues: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(t, sandbox.Config{}) // what the runtime keeps is opened now
			cmd, _ := guest(patience(t), "fds")
			if err := errors.Join(n.Wrap(cmd), cmd.Start(), n.Prepare(patience(t)), n.Close()); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()

			before := descriptors(t)
			n = newNetwork(t, c.cfg)
			var nofile unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
				t.Fatal(err)
			}
			cmd, _ = guest(patience(t), "fds")
			if err := errors.Join(n.Wrap(cmd), cmd.Start(), n.Prepare(patience(t))); err != nil {
				t.Fatal(err)
			}
			usage := n.Stats().Ledger
			reserved := int(nofile.Cur) - before - usage.Limit.Descriptors
			own := descriptors(t) - before - usage.Used.Descriptors
			const file = 1
			if need := own + dns.LookupDescriptors + control.Descriptors + file; need > reserved {
				t.Errorf("%d descriptors are reserved, %d needed: %d the network's own, %d look-ups, %d control", reserved, need, own, dns.LookupDescriptors, control.Descriptors)
			} else {
				t.Logf("%d descriptors are reserved, %d needed", reserved, need)
			}
			n.Close()
			cmd.Wait()
		})
	}
}
