package attach

import (
	"crypto/rand"
	"strings"

	"cleat/link"
)

// The first bytes of addresses that we choose: locally administered (IEEE 802c).
const (
	unicast  = 0x02
	portSide = 0xfe // a bridge without an address of its own takes its ports' lowest: never this
)

// randomMAC has 40 random bits.
func randomMAC(first byte) link.MAC {
	var m link.MAC
	_, _ = rand.Read(m[:]) // never fails (crypto/rand)
	m[0] = first
	return m
}

// tempName is a device name that nobody else has: 60 random bits.
func tempName() string { return tempPrefix + strings.ToLower(rand.Text()[:12]) }
