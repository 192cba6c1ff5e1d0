package ipam_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"cleat/network/ipam"
)

// An address changes hands only from the owner that is expected, and what a killed transfer has left is
// no obstacle.
func TestTransfer(t *testing.T) {
	dir := t.TempDir()
	subnet, a := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParseAddr("192.0.2.7")
	p := &ipam.Pool{Dir: dir, Subnets: []ipam.Subnet{{Prefix: subnet, Gateway: netip.MustParseAddr("192.0.2.1")}}}
	held := ipam.Reservation("docker")
	owner := func() ipam.Owner {
		t.Helper()
		o, err := p.Owner(a)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if err := p.Transfer(a, held, "web", nil); !errors.As(err, new(*ipam.TakenError)) || owner() != "" {
		t.Errorf("a free address: %v, owner %q", err, owner())
	}
	if err := p.Claim(a, held, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("killed", filepath.Join(dir, ".transfer")); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("no record")
	if err := p.Transfer(a, held, "web", func(netip.Addr) error { return refused }); !errors.Is(err, refused) || owner() != held {
		t.Errorf("without a record: %v, owner %q", err, owner())
	}
	recorded := netip.Addr{}
	if err := p.Transfer(a, held, "web", func(a netip.Addr) error { recorded = a; return nil }); err != nil || owner() != "web" || recorded != a {
		t.Errorf("%v, owner %q, recorded %s", err, owner(), recorded)
	}
	if err := p.Transfer(a, held, "web", nil); err != nil {
		t.Errorf("once more: %v", err)
	}
	var taken *ipam.TakenError
	if err := p.Transfer(a, held, "api", nil); !errors.As(err, &taken) || taken.Owner != "web" || owner() != "web" {
		t.Errorf("of another owner: %v, owner %q", err, owner())
	}
	if entries, err := p.Entries(); err != nil || len(entries) != 1 {
		t.Errorf("entries %v, %v", entries, err)
	}
}
