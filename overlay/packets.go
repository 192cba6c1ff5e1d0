package overlay

import (
	"fmt"
	"maps"
	"slices"

	"cleat/overlay/registry"
)

// A PacketChecker is a Dataplane that knows how large packets between hosts can be. CheckPackets returns a
// *PacketsError if the hosts of a State can't carry the packets of a network. If joins is set, the network exists, this
// host wants to join, and only what the network can't do without counts. It is safe for concurrent use.
type PacketChecker interface {
	CheckPackets(n registry.Network, s State, joins bool) error
}

// PacketsError means that a host can't carry packets that a network needs.
type PacketsError struct {
	Network string
	Why     string // they are needed, e.g. "--mtu"
	Bytes   int    // of the packets
	Most    int    // that the host carries
	Host    string
	MTU     int    // of its device
	Way     string // takes the difference; "": nothing does
}

func (e *PacketsError) Error() string {
	text := fmt.Sprintf("network %s needs packets of %d bytes between hosts (%s), and host %s passes at most %d", e.Network, e.Bytes, e.Why, e.Host, e.Most)
	if e.Way != "" {
		text += fmt.Sprintf(": its device has MTU %d, of which %s takes %d", e.MTU, e.Way, e.MTU-e.Most)
	}
	return text
}

// Hint returns what to type next.
func (e *PacketsError) Hint() string {
	if e.Why == ForIPv6 {
		return fmt.Sprintf("raise the MTU of the device of host %s to %d, e.g. ip link set DEVICE mtu %[2]d; or leave IPv6 out", e.Host, e.MTU+e.Bytes-e.Most)
	}
	return fmt.Sprintf("--mtu %d, or leave it out", e.Most)
}

// Values of PacketsError.Why.
const (
	ForMTU  = "--mtu"
	ForIPv6 = "IPv6"
)

// checkPackets returns a *PacketsError if the hosts of the mirror can't carry the packets of a network.
func (n *Node) checkPackets(net registry.Network) error {
	c, ok := n.cfg.Dataplane.(PacketChecker)
	if !ok {
		return nil
	}
	n.mu.Lock()
	s := n.mirror.state(n.settings.Host)
	n.mu.Unlock()
	return c.CheckPackets(net, s, false)
}

// joining returns the cluster of an answer as a host that joins will see it.
func (a *joinAnswer) joining(self registry.Host) State {
	s := State{VNI: a.Cluster.VNI, Default: a.Cluster.Dataplane, Encrypted: a.Cluster.Encryption == registry.EncryptionOn, Self: self}
	for _, name := range slices.Sorted(maps.Keys(a.Hosts)) {
		s.Hosts = append(s.Hosts, a.Hosts[name])
	}
	return s
}
