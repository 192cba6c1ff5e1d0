package policy

import "net/netip"

// Builtin says why an address can't be reached unless a rule allows it
// explicitly, e.g. "loopback", "link-local" or "metadata service"; "" when it
// can.
func Builtin(a netip.Addr) string { return "" }
