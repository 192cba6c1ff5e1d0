package keep

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzEvents parses messages about links and events of files that the kernel would not
// send.
func FuzzEvents(f *testing.F) {
	link := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg+8)
	binary.NativeEndian.PutUint32(link, uint32(len(link)))
	binary.NativeEndian.PutUint16(link[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint32(link[unix.SizeofNlMsghdr+4:], 7)
	binary.NativeEndian.PutUint16(link[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:], 8)
	binary.NativeEndian.PutUint16(link[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg+2:], unix.IFLA_IFNAME)
	f.Add(link)
	f.Add(link[:20])
	f.Add(event(unix.IN_MOVED_TO, "web.json"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e events
		e.addLinks(ownNSID, b, nil)
		e.addFiles(b, nil)
		if len(e.links) > len(b) || len(e.changed) > len(b) {
			t.Errorf("%d links and %d files in %d bytes", len(e.links), len(e.changed), len(b))
		}
	})
}
