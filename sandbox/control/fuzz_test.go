package control

import (
	"testing"

	"github.com/mdlayher/netlink"
)

// parsePeer parses an answer of the kernel or returns an error.
func FuzzParsePeer(f *testing.F) {
	answer := func(peer []byte) []byte {
		attributes := netlink.NewAttributeEncoder()
		attributes.Bytes(unixDiagPeer, peer)
		encoded, err := attributes.Encode()
		if err != nil {
			f.Fatal(err)
		}
		return append(make([]byte, unixDiagBytes), encoded...)
	}
	f.Add(uint16(sockDiagByFamily), answer([]byte{1, 0, 0, 0}))
	f.Add(uint16(sockDiagByFamily), make([]byte, unixDiagBytes))
	f.Add(uint16(sockDiagByFamily), answer([]byte{1}))
	f.Add(uint16(2), make([]byte, 64))
	f.Fuzz(func(t *testing.T, kind uint16, body []byte) {
		if _, err := parsePeer(kind, body); err == nil && (kind != sockDiagByFamily || len(body) < unixDiagBytes) {
			t.Errorf("parsePeer accepts type %d, %x", kind, body)
		}
	})
}
