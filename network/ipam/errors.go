package ipam

import (
	"fmt"
	"net/netip"
	"strings"
)

// SubnetError means that a field of a Subnet is invalid.
type SubnetError struct {
	Subnet netip.Prefix
	Field  string // "Prefix", "First", "Last", "Gateway" or "Exclude"
	Value  string
	Reason string // a sentence without its subject, which is Value
}

func (e *SubnetError) Error() string {
	if e.Field == "Prefix" {
		return fmt.Sprintf("subnet %s %s", e.Value, e.Reason)
	}
	return fmt.Sprintf("subnet %s: %s %s %s", e.Subnet, strings.ToLower(e.Field), e.Value, e.Reason)
}

// Reason is why an address can be given to nobody. It ends with a preposition, whose object
// is the subnet.
type Reason string

// The reasons.
const (
	OutsideSubnet    Reason = "outside"
	NetworkAddress   Reason = "the network address of"
	BroadcastAddress Reason = "the broadcast address of"
	AnycastAddress   Reason = "the subnet-router anycast address of" // IPv6
	GatewayAddress   Reason = "the gateway of"
	ExcludedAddress  Reason = "excluded from"
)

// UnusableError means that an address can be given to nobody.
type UnusableError struct {
	Addr    netip.Addr
	Reason  Reason
	Subnets []netip.Prefix // the subnet of Addr; with OutsideSubnet all subnets of the pool
}

func (e *UnusableError) Error() string {
	return fmt.Sprintf("address %s is %s %s", e.Addr, e.Reason, list(e.Subnets, len(e.Subnets), "or"))
}

// TakenError means that somebody else has the address.
type TakenError struct {
	Addr  netip.Addr
	Owner Owner // "": another process took the address during the call, and may have released it
}

func (e *TakenError) Error() string {
	switch note, reserved := e.Owner.Reserved(); {
	case reserved && note != "":
		return fmt.Sprintf("address %s is reserved (%s)", e.Addr, note)
	case reserved:
		return fmt.Sprintf("address %s is reserved", e.Addr)
	case e.Owner == "":
		return fmt.Sprintf("address %s is taken", e.Addr)
	default:
		return fmt.Sprintf("address %s is taken by %s", e.Addr, e.Owner)
	}
}

// FullError means that Allocate found no free address. What can be freed are the addresses of
// Owners, the reservations and Exclude. Addresses of the subnet outside First to Last can be
// claimed.
type FullError struct {
	Subnet      netip.Prefix
	First, Last netip.Addr // Allocate chose between them
	Taken       int        // addresses between First and Last that have an entry
	Reserved    int        // of Taken, those that are reserved
	Owners      []Share    // those with the most addresses, at most five
	OwnerCount  int        // number of all owners, without reservations
	Exclude     []netip.Prefix
}

// Share is the number of addresses that an owner has.
type Share struct {
	Owner     Owner
	Addresses int
}

func (s Share) String() string {
	if s.Addresses == 1 {
		return string(s.Owner)
	}
	return fmt.Sprintf("%s (%d)", s.Owner, s.Addresses)
}

func (e *FullError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "subnet %s has no free address", e.Subnet)
	if first, last := Bounds(e.Subnet); e.First != first || e.Last != last {
		fmt.Fprintf(&b, " from %s to %s", e.First, e.Last)
	}
	fmt.Fprintf(&b, ": %d taken", e.Taken)
	if e.OwnerCount > 0 {
		fmt.Fprintf(&b, " by %s", list(e.Owners, e.OwnerCount, "and"))
	}
	if e.Reserved > 0 {
		fmt.Fprintf(&b, ", %d of them reserved", e.Reserved)
	}
	if len(e.Exclude) > 0 {
		fmt.Fprintf(&b, "; excluded: %s", list(e.Exclude, len(e.Exclude), "and"))
	}
	return b.String()
}

// ForeignError means that the directory has files that are not entries of this package.
type ForeignError struct {
	Dir   string
	Names []string
}

func (e *ForeignError) Error() string {
	quoted := make([]string, min(len(e.Names), maxListed))
	for i := range quoted {
		quoted[i] = fmt.Sprintf("%q", e.Names[i])
	}
	return fmt.Sprintf("directory %s has files that are not address entries: %s", e.Dir, list(quoted, len(e.Names), "and"))
}

// maxListed is the number of items that a message lists.
const maxListed = 5

// list returns the first items of total as words: "a, b and 7 others".
func list[T any](items []T, total int, conjunction string) string {
	var words []string
	for _, item := range items[:min(len(items), maxListed)] {
		words = append(words, fmt.Sprint(item))
	}
	switch more := total - len(words); {
	case more == 1:
		words = append(words, "1 other")
	case more > 1:
		words = append(words, fmt.Sprintf("%d others", more))
	}
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
