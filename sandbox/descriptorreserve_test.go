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

// openDescriptors counts the open descriptors, including the one that reading the
// directory uses.
func openDescriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// The ledger leaves enough descriptors of the limit of open files for all that is not
// charged to it: what a Network opens for itself after New, the lookups of names in
// rules, the control socket and its clients, and one file that is read again.
func TestReservedDescriptorsAreEnough(t *testing.T) {
	fakeInternet(t)
	for _, c := range []struct {
		name string
		cfg  sandbox.Config
	}{
		{"plain", sandbox.Config{}},
		{"with automatic ports", sandbox.Config{
			AutoForward: []sandbox.AutoForward{{TCP: true, UDP: true}},
			Forwards:    []sandbox.Forward{{Protocol: sandbox.UDP, Listen: netip.MustParseAddrPort(outside4 + ":0"), To: toPort(80)}},
		}},
		{"several queues", sandbox.Config{Queues: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(t, sandbox.Config{}) // opens what the runtime keeps open
			cmd, _ := guest(testContext(t), "fds")
			if err := errors.Join(n.Wrap(cmd), cmd.Start(), n.Prepare(testContext(t)), n.Close()); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()

			before := openDescriptors(t)
			n = newNetwork(t, c.cfg)
			var nofile unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
				t.Fatal(err)
			}
			cmd, _ = guest(testContext(t), "fds")
			if err := errors.Join(n.Wrap(cmd), cmd.Start(), n.Prepare(testContext(t))); err != nil {
				t.Fatal(err)
			}
			usage := n.Stats().Ledger
			reserved := int(nofile.Cur) - before - usage.Limit.Descriptors
			own := openDescriptors(t) - before - usage.Used.Descriptors
			const file = 1
			if need := own + dns.LookupDescriptors + control.Descriptors + file; need > reserved {
				t.Errorf("%d descriptors are reserved, %d needed: %d for the network, %d for lookups, %d for the control socket", reserved, need, own, dns.LookupDescriptors, control.Descriptors)
			} else {
				t.Logf("%d descriptors are reserved, %d needed", reserved, need)
			}
			n.Close()
			cmd.Wait()
		})
	}
}
