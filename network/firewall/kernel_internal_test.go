package firewall

import (
	"errors"
	"fmt"
	"testing"

	"cleat/lab"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// TestManyErrors sends a batch of which every message fails, more than the kernel can answer. The error is that of the
// first.
func TestManyErrors(t *testing.T) {
	lab.Need(t)
	ns, err := netns.New("errors")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	k, err := open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	b := newBatch(0)
	for i := range 3000 {
		b.change(unix.NFT_MSG_DELTABLE, 0, families[0], fmt.Sprintf("delete table %d", i))
		b.string(unix.NFTA_TABLE_NAME, "absent")
	}
	if err := k.commit(b); !errors.Is(err, unix.ENOENT) || err.Error() != "delete table 0: no such file or directory" {
		t.Errorf("error %v", err)
	}
}
