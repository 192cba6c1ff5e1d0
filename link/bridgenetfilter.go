package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"cleat/netns"
)

// BridgeNetfilter selects the bridged packets that pass netfilter's hooks as if
// they were routed (CONFIG_BRIDGE_NETFILTER). It applies to all bridges of a
// namespace.
type BridgeNetfilter struct {
	IPTables  bool // IPv4: net.bridge.bridge-nf-call-iptables
	IP6Tables bool // IPv6: net.bridge.bridge-nf-call-ip6tables
	ARPTables bool // ARP: net.bridge.bridge-nf-call-arptables
}

// values returns the three sysctls by name.
func (b *BridgeNetfilter) values() map[string]*bool {
	return map[string]*bool{
		"iptables":  &b.IPTables,
		"ip6tables": &b.IP6Tables,
		"arptables": &b.ARPTables,
	}
}

const bridgeNetfilterPath = "/proc/sys/net/bridge/bridge-nf-call-"

// SetBridgeNetfilter sets all three sysctls of ns. A kernel without bridge
// netfilter is a *Lack.
func SetBridgeNetfilter(ns *netns.NS, b BridgeNetfilter) error {
	return ns.Do(func() error {
		for name, on := range b.values() {
			text := "0"
			if *on {
				text = "1"
			}
			if err := os.WriteFile(bridgeNetfilterPath+name, []byte(text), 0); err != nil {
				return bridgeNetfilterError(ns, err)
			}
		}
		return nil
	})
}

// ReadBridgeNetfilter reads the three sysctls of ns. A kernel without bridge
// netfilter is a *Lack: no bridged packet passes the hooks.
func ReadBridgeNetfilter(ns *netns.NS) (BridgeNetfilter, error) {
	var b BridgeNetfilter
	err := ns.Do(func() error {
		for name, on := range b.values() {
			text, err := os.ReadFile(bridgeNetfilterPath + name)
			if err != nil {
				return bridgeNetfilterError(ns, err)
			}
			*on = strings.TrimSpace(string(text)) != "0"
		}
		return nil
	})
	return b, err
}

func bridgeNetfilterError(ns *netns.NS, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return newLack("bridge-netfilter", err)
	}
	return fmt.Errorf("bridge netfilter of %s: %w", ns, err)
}
