package control

import (
	"testing"

	"cleat/internal/nlsock"
)

// FuzzPeerOf: the kernel's answer about a Unix socket is read or refused.
func FuzzPeerOf(f *testing.F) {
	f.Add(uint16(sockDiagByFamily), nlsock.AppendAttribute(make([]byte, unixDiagBytes), unixDiagPeer, []byte{1, 0, 0, 0}))
	f.Add(uint16(sockDiagByFamily), make([]byte, unixDiagBytes))
	f.Add(uint16(sockDiagByFamily), nlsock.AppendAttribute(make([]byte, unixDiagBytes), unixDiagPeer, []byte{1}))
	f.Add(uint16(2), make([]byte, 64))
	f.Fuzz(func(t *testing.T, kind uint16, body []byte) {
		if _, err := peerOf(kind, body); err == nil && (kind != sockDiagByFamily || len(body) < unixDiagBytes) {
			t.Errorf("type %d, %x was believed", kind, body)
		}
	})
}
