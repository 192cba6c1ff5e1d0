package resolvconf

import (
	"net/netip"
	"os"
	"slices"
)

// stub has the servers that systemd-resolved asks. Engines prefer them to its stub at 127.0.0.53
// (systemd-resolved.service(8)).
const stub = "/run/systemd/resolve/resolv.conf"

// HostServers returns the name servers of the host that engines write into the resolv.conf of a
// container: those in the file at path that a container could reach. An empty path means /etc/resolv.conf
// and, if that has none, the file of systemd-resolved.
func HostServers(path string) []netip.Addr {
	if path != "" {
		return serversIn(path)
	}
	if all := serversIn("/etc/resolv.conf"); len(all) > 0 {
		return all
	}
	return serversIn(stub)
}

// serversIn returns the servers in a resolv.conf that a container could reach.
func serversIn(path string) []netip.Addr {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var all []netip.Addr
	for _, a := range Parse(text).Servers {
		a = a.WithZone("").Unmap()
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsUnspecified() && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}
