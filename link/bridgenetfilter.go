package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cleat/netns"
)

// SetBridgeNetfilter selects whether bridged packets (IPv4, IPv6 and ARP) pass
// netfilter's hooks as if they were routed (CONFIG_BRIDGE_NETFILTER). It sets the
// sysctls net.bridge.bridge-nf-call-*, which apply to all bridges of a namespace. A
// kernel without bridge netfilter is a *Lack.
func SetBridgeNetfilter(ns *netns.NS, on bool) error {
	text := "0"
	if on {
		text = "1"
	}
	return eachBridgeNetfilter(ns, func(path string) error { return os.WriteFile(path, []byte(text), 0) })
}

// probeBridgeNetfilter sets the current values again.
func probeBridgeNetfilter(ns *netns.NS) error {
	return eachBridgeNetfilter(ns, func(path string) error {
		now, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, now, 0)
	})
}

// eachBridgeNetfilter calls do with the files of the sysctls, inside ns.
func eachBridgeNetfilter(ns *netns.NS, do func(path string) error) error {
	return ns.Do(func() error {
		for _, name := range []string{"iptables", "ip6tables", "arptables"} {
			err := do("/proc/sys/net/bridge/bridge-nf-call-" + name)
			if errors.Is(err, fs.ErrNotExist) {
				return newLack("bridge-netfilter", err)
			}
			if err != nil {
				return fmt.Errorf("bridge netfilter of %s: %w", ns, err)
			}
		}
		return nil
	})
}
