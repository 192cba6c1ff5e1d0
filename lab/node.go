package lab

import (
	"fmt"
	"net/netip"
	"os"

	"cleat/link"
	"cleat/netns"
)

// Node is a host or a container of the lab: a network namespace with the programs in it.
type Node struct {
	NS *netns.NS
}

// NewNode makes a node whose loopback is up. It does not forward packets, and its default
// congestion control is Reno. A new namespace inherits both settings from the host.
// Docker changes the first. The second may be BBR, and its pacing stays with a connection
// that gets another congestion control later, as iperf3 and all servers do: that costs
// half the rate of a veth.
func NewNode(name string) (*Node, error) {
	ns, err := netns.New(name)
	if err != nil {
		return nil, err
	}
	n := &Node{NS: ns}
	lo, err := link.Find(ns, "lo")
	if err == nil {
		err = lo.Up()
	}
	for _, one := range [...][2]string{{"net/ipv4/ip_forward", "0"}, {"net/ipv4/tcp_congestion_control", "reno"}} {
		if err == nil {
			err = n.Sysctl(one[0], one[1])
		}
	}
	if err != nil {
		ns.Close()
		return nil, err
	}
	return n, nil
}

// String returns the node's name.
func (n *Node) String() string { return n.NS.String() }

// Close releases the namespace. Its links vanish when the last process in it has ended.
func (n *Node) Close() error { return n.NS.Close() }

// Start runs a program on the node.
func (n *Node) Start(c Command) (Proc, error) {
	cmd := c.cmd()
	err := n.NS.Do(func() error { return startPinned(cmd, c.CPU) })
	if err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", c.Args[0], n, err)
	}
	return newLocalProc(cmd), nil
}

// Sysctl sets a parameter of the node's own network stack, with its path below /proc/sys,
// e.g. "net/ipv4/ip_forward". In a user lab the kernel refuses parameters that are not
// per namespace.
func (n *Node) Sysctl(name, value string) error {
	return n.NS.Do(func() error {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl %s on %s: %w", name, n, err)
		}
		return nil
	})
}

// Address brings the named link up and adds addresses to it.
func (n *Node) Address(name string, prefixes ...netip.Prefix) error {
	l, err := link.Find(n.NS, name)
	if err != nil {
		return err
	}
	for _, p := range prefixes {
		if err := l.AddAddr(p); err != nil {
			return err
		}
	}
	return l.Up()
}

// End is one end of a cable: a new link on a node.
type End struct {
	Node *Node
	Name string
}

// Cable is a veth pair between two nodes.
type Cable struct {
	MTU            int   // bytes; 0: 1500
	RateBitsPerSec int64 // shaped in both directions; 0: unshaped
}

// Connect makes a cable from a to b and brings both ends up.
func Connect(a, b End, c Cable) error {
	spec := link.VethSpec{
		Attrs: link.Attrs{Name: a.Name, MTU: c.MTU},
		Peer:  link.Attrs{Name: b.Name, MTU: c.MTU},
	}
	if _, err := link.Create(a.Node.NS, spec, link.Target{PeerNS: b.Node.NS}); err != nil {
		return err
	}
	for _, e := range []End{a, b} {
		l, err := link.Find(e.Node.NS, e.Name)
		if err != nil {
			return err
		}
		if err := l.Up(); err != nil {
			return err
		}
		if c.RateBitsPerSec > 0 {
			if err := link.Shape(l, link.Shaping{RateBitsPerSec: c.RateBitsPerSec}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Switch is a learning switch: a bridge in a namespace of its own.
type Switch struct {
	*Node
	ports int
	mtu   int
}

const switchBridge = "switch"

// NewSwitch makes a switch without ports. The MTU is that of its cables.
func NewSwitch(name string, mtu int) (*Switch, error) {
	n, err := NewNode(name)
	if err != nil {
		return nil, err
	}
	br, err := link.Create(n.NS, link.BridgeSpec{Attrs: link.Attrs{Name: switchBridge, MTU: mtu}}, link.Target{})
	if err == nil {
		err = br.Up()
	}
	if err == nil {
		err = link.SetBridgeNetfilter(n.NS, false)
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	return &Switch{Node: n, mtu: mtu}, nil
}

// Plug makes a cable from e to a new port and returns the port's name.
func (s *Switch) Plug(e End, rateBitsPerSec int64) (string, error) {
	port := fmt.Sprintf("port%d", s.ports)
	s.ports++
	if err := Connect(e, End{s.Node, port}, Cable{MTU: s.mtu, RateBitsPerSec: rateBitsPerSec}); err != nil {
		return "", err
	}
	l, err := link.Find(s.NS, port)
	if err != nil {
		return "", err
	}
	return port, l.SetMaster(switchBridge)
}
