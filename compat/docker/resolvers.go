package docker

import (
	"cmp"
	"net/netip"
	"os"
	"slices"
	"strings"

	"cleat/network/resolvconf"
)

// Docker's name server in a container, 127.0.0.11, asks the host's servers for names that it does not
// know. Older versions, such as 20.10, do so from within the container's namespace: what goes to one of these
// is answered by the name server of the network's gateway, which knows the names of containers of other engines
// and asks the host's servers for the rest. Newer ones, such as 28, ask from the host, except servers that
// somebody has chosen (--dns), and say so in the container's resolv.conf (moby,
// libnetwork/internal/resolvconf, TransformForIntNS).

// publicServers are what Docker uses if the host has no servers (moby, libnetwork/resolvconf).
var publicServers = []netip.Addr{
	netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("8.8.4.4"),
	netip.MustParseAddr("2001:4860:4860::8888"), netip.MustParseAddr("2001:4860:4860::8844"),
}

// maxResolvers bounds how many servers are looked at (MAXNS of resolv.h is 3).
const maxResolvers = 8

// hostResolvers returns the servers that Docker may ask for a container. It reports whether Docker asks
// them from within the container: servers at loopback addresses it asks from the host.
func (c *call) hostResolvers() (all []netip.Addr, fromInside bool) {
	all = resolvconf.HostServers(c.HostResolvConf)
	if len(all) == 0 {
		text, err := os.ReadFile(cmp.Or(c.HostResolvConf, "/etc/resolv.conf"))
		return slices.Clone(publicServers), err != nil || len(resolvconf.Parse(text).Servers) == 0
	}
	return all[:min(len(all), maxResolvers)], true
}

// asksFromHost reports whether a container's resolv.conf says that 127.0.0.11 asks other servers from the
// host: "# ExtServers: [host(192.0.2.53)]".
func asksFromHost(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		if servers, is := strings.CutPrefix(line, "# ExtServers:"); is {
			return strings.Contains(servers, "host(")
		}
	}
	return false
}
