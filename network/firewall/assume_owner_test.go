package firewall_test

import (
	"errors"
	"os/exec"
	"testing"

	"cleat/network/firewall"
)

// The kernel refuses all kinds of changes to an owned table by other sockets, and permits them
// once the owner is gone. TestOwner tests what the package makes of this.
func TestAssumeOwner(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no program nft")
	}
	table := newTable(t)
	o := own(t, table)
	must(t, o.Sync(firewall.State{}))
	for _, command := range []string{"delete table ip cleat-net", "flush table ip cleat-net", "add element ip cleat-net own-devices { x }", "insert rule ip cleat-net forward drop"} {
		if err := nftError(table, command); err == nil {
			t.Errorf("nft %q of an owned table succeeds", command)
		}
	}
	if err := table.Apply(firewall.Change{Add: firewall.State{Networks: []firewall.Network{{Devices: []string{"x"}}}}}); !errors.Is(err, firewall.ErrOwned) {
		t.Errorf("change by another socket: %v, want ErrOwned", err)
	}
	o.Close()
	if err := nftError(table, "add element ip cleat-net own-devices { x }"); err != nil {
		t.Errorf("nft can't change a table that has lost its owner: %v", err)
	}
}

func nftError(table firewall.Table, command string) error {
	return table.NS.Do(func() error { return exec.Command("nft", command).Run() })
}
