package dhcp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ErrClient says that a Client can't be sent.
var ErrClient = errors.New("not a DHCP client's identity")

// Client is who asks, as servers see it. The same Client gets the same address again where
// the server remembers it. Two on one segment must differ in ID, or, if they have none, in
// their Ethernet addresses.
type Client struct {
	ID          Identifier `json:"id,omitempty"`           // option 61; empty: the Ethernet address stands for it
	HostName    string     `json:"host_name,omitempty"`    // option 12; empty: not told
	VendorClass string     `json:"vendor_class,omitempty"` // option 60; empty: not told
}

// Identifier is a client identifier: 2 to 255 bytes, the first of which is its type
// (RFC 2132 section 9.14). Its text is hexadecimal.
type Identifier []byte

// Parts of an Identifier for a machine with several links (RFC 4361 section 6.1).
const (
	typeDUID = 255 // the type: an IAID and a DUID follow
	duidUUID = 4   // the type of the DUID: a UUID follows (RFC 6355 section 4)
)

// IdentifierOf is that of one link of a container, in the form of RFC 4361: the container is
// the DUID, the link's name in it the IAID. It stays what it is when the link gets another
// Ethernet address or shares it with others, as on ipvlan. container is whatever stays the
// same for as long as the address shall.
func IdentifierOf(container, ifname string) Identifier {
	link, machine := sha256.Sum256([]byte(ifname)), sha256.Sum256([]byte(container))
	uuid := machine[:16]
	uuid[6] = uuid[6]&0x0f | 8<<4 // version 8: of one's own making (RFC 9562 section 5.8)
	uuid[8] = uuid[8]&0x3f | 2<<6 // the variant that has versions
	id := Identifier{typeDUID}
	id = append(id, link[:4]...)
	id = binary.BigEndian.AppendUint16(id, duidUUID)
	return append(id, uuid...)
}

// String is the identifier in hexadecimal.
func (id Identifier) String() string { return hex.EncodeToString(id) }

// MarshalText implements encoding.TextMarshaler.
func (id Identifier) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *Identifier) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("read client identifier: %w", err)
	}
	*id = b
	return nil
}

// Limits of what a client says of itself.
const (
	maxOptionBytes = 255 // RFC 2132 section 2
	minIDBytes     = 2   // RFC 2132 section 9.14
)

// Validate returns an error that wraps ErrClient where a field can't be sent.
func (c Client) Validate() error {
	switch {
	case len(c.ID) > 0 && (len(c.ID) < minIDBytes || len(c.ID) > maxOptionBytes):
		return fmt.Errorf("%w: an identifier has %d to %d bytes, not %d", ErrClient, minIDBytes, maxOptionBytes, len(c.ID))
	case c.HostName != "" && !validName(c.HostName):
		return fmt.Errorf("%w: %q is no host name: letters, digits, '-' and '.'", ErrClient, c.HostName)
	case len(c.VendorClass) > maxOptionBytes:
		return fmt.Errorf("%w: a vendor class has up to %d bytes, not %d", ErrClient, maxOptionBytes, len(c.VendorClass))
	}
	return nil
}

// Limits of names (RFC 1035 section 2.3.4).
const (
	maxNameBytes  = 253 // without the last dot
	maxLabelBytes = 63
)

// validName tells whether s can be a host or domain name: what is else in it might mean
// something else in a file that it ends up in. '_' is in use though RFC 952 has it not.
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
