package why

import (
	"encoding/binary"
	"fmt"
	"slices"

	"cleat/internal/columns"
	"cleat/link"
	"cleat/network/attach"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// bridgePort is what a bridge says of one of its ports.
type bridgePort struct {
	bridge   int // index
	state    byte
	running  bool // it has a carrier; a port without one is disabled
	isolated bool
	hairpin  bool // frames may leave by the port that they came by
}

// States of a port (include/uapi/linux/if_bridge.h), as bridge(8) calls them.
var portStates = map[byte]string{disabled: "disabled", 1: "listening", 2: "learning", forwarding: "forwarding", 4: "blocking"}

const (
	disabled   = 0 // BR_STATE_DISABLED
	forwarding = 3 // BR_STATE_FORWARDING

	// Attributes of a port (include/uapi/linux/if_link.h).
	brportState    = 1  // IFLA_BRPORT_STATE
	brportHairpin  = 4  // IFLA_BRPORT_MODE
	brportIsolated = 33 // IFLA_BRPORT_ISOLATED
)

// checkPorts checks the ports of bridges of the host to which the ends are connected.
func (v *investigation) checkPorts() {
	ports, err := v.bridgePorts()
	if err != nil {
		v.unknown(checkKernel, "%v", err)
		return
	}
	isolated := map[string]int{} // by network
	for _, m := range append([]*machine{v.from}, v.to...) {
		for _, e := range m.endpoints {
			a, err := v.store.Attachment(e.AttachmentID)
			if err != nil || m.ns == nil {
				continue
			}
			st, err := attach.StatusOf(v.store.Store, a)
			p, is := ports[st.Peer]
			switch {
			case err != nil || !is || st.State != attach.Attached || !v.concerns(e):
			case p.state != forwarding && p.running:
				v.bad(checkKernel, finding{cause: LinkDown, explains: lost, try: v.forward(st.Peer, p),
					because: fmt.Sprintf("the bridge of %s does not forward at %s, the port of %s: its state is %s", e.Network, st.Peer, m.label, portStates[p.state])})
			case !p.hairpin && v.publishesToItself(m):
				v.bad(checkKernel, finding{cause: Hairpin, explains: lost, weak: true, try: "bridge link set dev " + columns.Word(st.Peer) + " hairpin on",
					because: fmt.Sprintf("the bridge of %s does not send packets back to %s, which reaches itself by a published port", e.Network, m.label)})
			case p.isolated:
				if isolated[e.Network]++; isolated[e.Network] > 1 {
					v.bad(checkKernel, finding{cause: LinkDown, explains: lost, because: fmt.Sprintf("the ports of both on the bridge of %s are isolated", e.Network),
						try: "bridge link set dev " + columns.Word(st.Peer) + " isolated off"})
				}
			}
		}
	}
}

// publishesToItself reports whether the host translates packets of a machine to the machine's own
// address, and its bridge has to send them back: with bridge netfilter they are translated
// before they leave the bridge.
func (v *investigation) publishesToItself(m *machine) bool {
	return m == v.from && slices.ContainsFunc(v.targets, func(t *target) bool { return t.published != nil && t.published.at == m })
}

// forward returns the command that makes a port of a bridge forward. Only spanning tree puts
// ports into other states than disabled.
func (v *investigation) forward(name string, p bridgePort) string {
	if p.state != disabled {
		if h, err := link.Handle(v.host.ns); err == nil {
			defer h.Close()
			if l, err := h.LinkByIndex(p.bridge); err == nil {
				return "ip link set " + columns.Word(l.Attrs().Name) + " type bridge stp_state 0"
			}
		}
	}
	return fmt.Sprintf("bridge link set dev %s state %d", columns.Word(name), forwarding)
}

// bridgePorts returns the ports of all bridges of the host, by name.
func (v *investigation) bridgePorts() (map[string]bridgePort, error) {
	all := map[string]bridgePort{}
	return all, v.host.ns.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
		messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil {
			return fmt.Errorf("list ports of bridges: %w", err)
		}
		for _, m := range messages {
			name, p, err := parsePort(m)
			if err != nil {
				return fmt.Errorf("list ports of bridges: %w", err)
			}
			all[name] = p
		}
		return nil
	})
}

func parsePort(message []byte) (name string, p bridgePort, err error) {
	if len(message) < unix.SizeofIfInfomsg {
		return "", p, unix.EINVAL
	}
	p.running = nl.DeserializeIfInfomsg(message).Flags&unix.IFF_RUNNING != 0
	attrs, err := nl.ParseRouteAttr(message[unix.SizeofIfInfomsg:])
	if err != nil {
		return "", p, err
	}
	for _, a := range attrs {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			name = nl.BytesToString(a.Value)
		case unix.IFLA_MASTER:
			if len(a.Value) == 4 {
				p.bridge = int(binary.NativeEndian.Uint32(a.Value))
			}
		case unix.IFLA_PROTINFO:
			fields, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return "", p, err
			}
			for _, f := range fields {
				if len(f.Value) == 0 {
					continue
				}
				switch f.Attr.Type {
				case brportState:
					p.state = f.Value[0]
				case brportHairpin:
					p.hairpin = f.Value[0] != 0
				case brportIsolated:
					p.isolated = f.Value[0] != 0
				}
			}
		}
	}
	return name, p, nil
}
