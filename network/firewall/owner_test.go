package firewall_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/netns"
	"cleat/network/firewall"

	"github.com/google/nftables"
)

// ownerEnv makes the test binary a process that owns the table of the namespace at this path.
const ownerEnv = "CLEAT_TEST_OWNER"

// killed is the owner of a process that is to be killed. Without a reference to it, the garbage collector
// would close its socket, and the table would have no owner.
var killed *firewall.Owner

func ownUntilKilled(path string) {
	ns, err := netns.Open(path)
	if err == nil {
		if killed, err = (firewall.Table{NS: ns, Name: "cleat-net"}).Own(); err == nil {
			err = killed.Sync(ownedState())
		}
	}
	fmt.Println("owned", err)
	for { // a process without a timer may end: "all goroutines are asleep"
		time.Sleep(time.Hour)
	}
}

func ownedState() firewall.State {
	s := randomState(rand.New(rand.NewPCG(5, 5)))
	for i := range s.Networks {
		s.Networks[i].VRF = "" // Apply can remove it
	}
	for i := range s.Ports {
		s.Ports[i].VRF = ""
	}
	return s
}

func own(t *testing.T, table firewall.Table) *firewall.Owner {
	t.Helper()
	o, err := table.Own()
	must(t, err)
	t.Cleanup(func() { o.Close() })
	if !o.Protected() {
		t.Skip("the kernel can't protect tables (Linux 6.9)")
	}
	return o
}

func flushRuleset(t *testing.T, table firewall.Table) {
	t.Helper()
	must(t, table.NS.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.FlushRuleset()
		return c.Flush()
	}))
}

// While a table has an owner, nobody else changes it, and flushing the ruleset spares it.
func TestOwner(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := ownedState()
	must(t, table.Sync(firewall.State{})) // as somebody has left it
	o := own(t, table)
	must(t, o.Sync(s))
	for range 2 {
		all, err := o.Check(s)
		if err != nil || len(all) > 0 {
			t.Fatalf("differences: %v, %v", all, err)
		}
		flushRuleset(t, table)
	}
	assertState(t, table, s)
	if err := table.Apply(firewall.Change{Remove: s}); !errors.Is(err, firewall.ErrOwned) {
		t.Errorf("Apply by others: %v, want ErrOwned", err)
	}
	if err := table.Sync(firewall.State{}); !errors.Is(err, firewall.ErrOwned) {
		t.Errorf("Sync by others: %v, want ErrOwned", err)
	}
	if err := table.Remove(); !errors.Is(err, firewall.ErrOwned) {
		t.Errorf("Remove by others: %v, want ErrOwned", err)
	}
	if _, err := table.Own(); !errors.Is(err, firewall.ErrOwned) {
		t.Errorf("Own by others: %v, want ErrOwned", err)
	}
	assertState(t, table, s)
	must(t, o.Apply(firewall.Change{Remove: s}))
	assertState(t, table, firewall.State{})
	must(t, o.Remove())
}

// A table survives its owner, belongs to nobody then, and can be adopted as it is.
func TestOwnerIsKilled(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	own(t, table).Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownerEnv+"="+table.NS.Path())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "owned <nil>\n" {
		t.Fatalf("the owner says %q, %v", line, err)
	}
	s := ownedState()
	if _, err := table.Own(); !errors.Is(err, firewall.ErrOwned) {
		t.Errorf("Own while another process owns the table: %v, want ErrOwned", err)
	}
	before := handles(t, table)
	must(t, cmd.Process.Kill())
	cmd.Wait()
	assertState(t, table, s)
	o := own(t, table)
	if all, err := o.Check(s); err != nil || len(all) != 2 || !strings.Contains(all[0].String(), "has no owner") {
		t.Errorf("differences before adoption: %v, %v, want that the tables have no owner", all, err)
	}
	must(t, o.Sync(s))
	flushRuleset(t, table)
	if all, err := o.Check(s); err != nil || len(all) > 0 {
		t.Errorf("differences after adoption: %v, %v", all, err)
	}
	if after := handles(t, table); after != before {
		t.Errorf("adoption has replaced rules: handles %s, before %s", after, before)
	}
	o.Close()
	// It is anybody's again. A process that another test is starting has the socket until it is executed.
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if err = table.Apply(firewall.Change{Remove: s}); !errors.Is(err, firewall.ErrOwned) || time.Now().After(deadline) {
			break
		}
	}
	must(t, err)
	assertState(t, table, firewall.State{})
}

// handles lists the kernel's numbers of all rules.
func handles(t *testing.T, table firewall.Table) string {
	t.Helper()
	var all []uint64
	must(t, table.NS.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		chains, err := c.ListChains()
		for _, chain := range chains {
			rules, err := c.GetRules(chain.Table, chain)
			if err != nil {
				return err
			}
			for _, r := range rules {
				all = append(all, r.Handle)
			}
		}
		return err
	}))
	return fmt.Sprint(all)
}

// A closed Owner does nothing.
func TestClosedOwner(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	o, err := table.Own()
	must(t, err, o.Close(), o.Close())
	if err := o.Sync(firewall.State{}); err == nil {
		t.Error("Sync after Close succeeds")
	}
}

// A table whose owner ends at the moment when others change it is not in their way.
func TestOwnerEndsMeanwhile(t *testing.T) {
	table := newTable(t)
	removed := 0
	for range 60 {
		o := own(t, table)
		must(t, o.Sync(ownedState()))
		var ended sync.WaitGroup
		ended.Go(func() { o.Close() })
		err := table.Remove()
		ended.Wait()
		switch {
		case err == nil:
			removed++
		case errors.Is(err, firewall.ErrOwned):
			must(t, table.Remove())
		default:
			t.Fatalf("removed %d times: %v", removed, err)
		}
	}
	t.Logf("of 60 times, the owner had ended %d times", removed)
}
