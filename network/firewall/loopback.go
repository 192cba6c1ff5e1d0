package firewall

import (
	"fmt"
	"os"
)

// RouteLoopback makes ports that are published for IPv4 reachable at 127.0.0.1 for the host's
// own programs, as far as they belong to endpoints behind a device. It sets the device's
// sysctl route_localnet, and is called once for each device. The table drops what endpoints
// send to 127.0.0.0/8 themselves, which this sysctl would otherwise permit: it must exist
// first. There is no such sysctl for ::1.
func (t Table) RouteLoopback(device string) error {
	if err := validateDevice(device); err != nil {
		return err
	}
	err := t.NS.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/"+device+"/route_localnet", []byte("1"), 0)
	})
	if err != nil {
		return fmt.Errorf("route loopback addresses through %s in %s: %w", device, t.NS, err)
	}
	return nil
}
