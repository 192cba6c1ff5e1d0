package dns

import (
	"io"
	"net/netip"
	"time"
)

// ResolvConf is what a resolv.conf says (resolv.conf(5)).
type ResolvConf struct {
	Servers  []netip.AddrPort
	Search   []string
	Ndots    int
	Timeout  time.Duration
	Attempts int
	Rotate   bool
	EDNS0    bool
}

// ParseResolvConf reads a resolv.conf. Like the C library's, it skips what it
// does not understand. The error is that of reading.
func ParseResolvConf(r io.Reader) (ResolvConf, error) { return ResolvConf{}, nil }

// Guest is a resolv.conf for the guest that leads to our resolvers and keeps the
// search list and the options that are about names.
func (c ResolvConf) Guest(resolvers ...netip.Addr) []byte { return nil }
