package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// BridgeEntry says where a bridge sends frames for an Ethernet address.
type BridgeEntry struct {
	Port      int  // the index of the port, or of the bridge itself
	Permanent bool // somebody has set it, or it is the address of the port itself; otherwise the bridge has learned it
}

// LookupBridge returns what the bridge with an index in a namespace knows about an Ethernet address. vlan
// is 0 if the bridge does not filter VLANs. ok is false if the bridge does not know the address, and
// always before Linux 5.0. The time it takes does not depend on how many addresses the bridge knows.
func LookupBridge(ns *netns.NS, bridge int, mac MAC, vlan int) (entry BridgeEntry, ok bool, err error) {
	r, err := dial(ns)
	if err != nil {
		return BridgeEntry{}, false, err
	}
	defer r.Close()
	header := make([]byte, unix.SizeofNdMsg)
	header[0] = unix.AF_BRIDGE
	attrs := []attribute{{Type: unix.NDA_LLADDR, Data: mac[:]}, uint32Attr(unix.NDA_MASTER, bridge)}
	if vlan != 0 {
		attrs = append(attrs, attribute{Type: unix.NDA_VLAN, Data: putUint(uint32(vlan), 2, false)})
	}
	answers, err := r.execute(unix.RTM_GETNEIGH, 0, header, attrs)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return BridgeEntry{}, false, nil
	}
	if err != nil {
		return BridgeEntry{}, false, fmt.Errorf("look up %s in bridge %d of %s: %w", mac, bridge, ns, err)
	}
	for _, m := range answers {
		if m.Header.Type == unix.RTM_NEWNEIGH && len(m.Data) >= unix.SizeofNdMsg {
			// struct ndmsg, include/uapi/linux/neighbour.h
			entry.Port = int(binary.NativeEndian.Uint32(m.Data[4:]))
			entry.Permanent = binary.NativeEndian.Uint16(m.Data[8:])&unix.NUD_PERMANENT != 0
			return entry, true, nil
		}
	}
	return BridgeEntry{}, false, nil
}
