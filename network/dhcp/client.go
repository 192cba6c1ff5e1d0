package dhcp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ErrClient means that a Client is invalid.
var ErrClient = errors.New("invalid DHCP client")

// Client identifies a client to servers. A server that remembers a Client gives it the
// same address again. Two on one segment must differ in ID or, if they have none, in
// their Ethernet addresses.
type Client struct {
	ID       Identifier `json:"id,omitempty"`        // option 61; empty: servers use the Ethernet address
	HostName string     `json:"host_name,omitempty"` // option 12; empty: not sent
}

// Identifier is a client identifier: 2 to 255 bytes, of which the first is its type (RFC
// 2132 section 9.14). Its text form is hexadecimal.
type Identifier []byte

// Types in an Identifier for a machine with several links (RFC 4361 section 6.1).
const (
	typeDUID = 255 // of the identifier: an IAID and a DUID follow
	duidUUID = 4   // of the DUID: a UUID follows (RFC 6355 section 4)
)

// IdentifierOf returns the identifier of a link of a container, in the form of RFC 4361:
// the container is the DUID, the name of the link the IAID. It does not depend on the
// link's Ethernet address, which may change, or be shared as on ipvlan. container can be
// any text; it should stay the same for as long as the address should.
func IdentifierOf(container, ifname string) Identifier {
	link, machine := sha256.Sum256([]byte(ifname)), sha256.Sum256([]byte(container))
	uuid := machine[:16]
	uuid[6] = uuid[6]&0x0f | 8<<4 // version 8: custom (RFC 9562 section 5.8)
	uuid[8] = uuid[8]&0x3f | 2<<6 // the variant with versions
	id := Identifier{typeDUID}
	id = append(id, link[:4]...)
	id = binary.BigEndian.AppendUint16(id, duidUUID)
	return append(id, uuid...)
}

// String returns the identifier in hexadecimal.
func (id Identifier) String() string { return hex.EncodeToString(id) }

// MarshalText implements encoding.TextMarshaler.
func (id Identifier) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *Identifier) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("parse client identifier: %w", err)
	}
	*id = b
	return nil
}

// Validate returns an error that wraps ErrClient if the host name is invalid.
func (c Client) Validate() error {
	if c.HostName != "" && !validName(c.HostName) {
		return fmt.Errorf("%w: host name %q: want letters, digits, '-' and '.'", ErrClient, c.HostName)
	}
	return nil
}

// Limits of names (RFC 1035 section 2.3.4).
const (
	maxNameBytes  = 253 // without the final dot
	maxLabelBytes = 63
)

// validName reports whether s can be a host or domain name. Other characters could have a
// meaning in a file in which the name is used. '_' is common, though RFC 952 does not
// allow it.
func validName(s string) bool {
	if s == "" || len(s) > maxNameBytes {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > maxLabelBytes || label[0] == '-' {
			return false
		}
		for _, r := range []byte(label) {
			if (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' {
				return false
			}
		}
	}
	return true
}
