package pipework

import (
	"fmt"
	"io"
)

// printHelp prints the usage.
func printHelp(w io.Writer) {
	fmt.Fprint(w, `Usage: pipework HOSTIF [OPTION]... GUEST ADDRESS/LENGTH[@GATEWAY] [MAC][@VLAN]
       pipework HOSTIF [OPTION]... GUEST 0/0 [MAC][@VLAN]
       pipework HOSTIF [OPTION]... GUEST dhcp|CLIENT [MAC][@VLAN]
       pipework route|rule|tc GUEST ARG...
       pipework --wait [-i LINK]

Puts a running container on a bridge or a network card. This is cleat in place of
pipework: `+"`cleat ls`"+` lists what is attached, and `+"`cleat detach`"+` undoes it.

  HOSTIF   a bridge, created if missing and named br... or ovs...; any other
           device, shared by macvlan; mac:ADDRESS for the device with that
           address; dummy for a dummy device
  GUEST    a container, a process id, a name from `+"`ip netns`"+`, or a path
  CLIENT   a DHCP client's name: dhclient, udhcpc or dhcpcd
  GATEWAY  default gateway; replaces the container's default route
  MAC      an Ethernet address, or U:WORD for one derived from WORD

  -i LINK         the link's name in the container (default: eth1)
  -l NAME         the name of its other end, on a bridge
  -a inet|inet6   the family that the address must have
  --ipvlan        share the device by ipvlan in mode l3
  --direct-phys   move the device itself, or a VLAN of it
  -H NAME         the host name for DHCP (default: the container's)
  --wait          wait until LINK is up in this namespace
  --help, --version

dhcp and CLIENT all use cleat's own DHCP client. The lease is renewed while the
container is attached, with or without -f after the name. route, rule and tc run
ip(8) and tc(8) in the container's network.

  pipework br1 web 192.0.2.10/24@192.0.2.1
  pipework eth0 web dhcp
  pipework eth0 -i eth2 web 192.0.2.10/24 U:web@10
  pipework route web add 198.51.100.0/24 via 192.0.2.254
`)
}
