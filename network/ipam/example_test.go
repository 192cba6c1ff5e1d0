package ipam_test

import (
	"fmt"
	"net/netip"
	"os"

	"cleat/network/ipam"
)

func Example() {
	dir, err := os.MkdirTemp("", "addresses")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	subnet := netip.MustParsePrefix("192.0.2.0/24")
	pool := &ipam.Pool{Dir: dir, Subnets: []ipam.Subnet{{Prefix: subnet, Gateway: netip.MustParseAddr("192.0.2.1")}}}

	addr, err := pool.Allocate(subnet, "docker.web", netip.Addr{}, nil)
	fmt.Println(addr, err)
	err = pool.Claim(netip.MustParseAddr("192.0.2.3"), ipam.Reservation("printer"), nil)
	fmt.Println(err)
	err = pool.Claim(netip.MustParseAddr("192.0.2.3"), "docker.db", nil)
	fmt.Println(err)
	entries, err := pool.Entries()
	fmt.Println(entries, err)
	// Output:
	// 192.0.2.2 <nil>
	// <nil>
	// address 192.0.2.3 is reserved (printer)
	// [{192.0.2.2 docker.web} {192.0.2.3 reserved/printer}] <nil>
}
