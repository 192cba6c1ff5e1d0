package pipework

import (
	"fmt"
	"io"
)

// printHelp prints how the program is called.
func printHelp(w io.Writer) {
	fmt.Fprint(w, `Usage: pipework HOSTIF [OPTION]... GUEST ADDRESS/LENGTH[@GATEWAY] [MAC][@VLAN]
       pipework HOSTIF [OPTION]... GUEST 0/0 [MAC][@VLAN]
       pipework HOSTIF [OPTION]... GUEST dhcp|CLIENT [MAC][@VLAN]
       pipework route|rule|tc GUEST ARG...
       pipework --wait [-i LINK]

Puts a running container on a bridge or a card. This is cleat in pipework's
place: `+"`cleat ls`"+` lists what is attached, and `+"`cleat detach`"+` undoes it.

  HOSTIF   a bridge, made if need be where it is called br... or ovs...;
           another device, shared by macvlan; mac:ADDRESS for the one that has
           that; dummy for a link to nowhere
  GUEST    a container, a process id, a name from `+"`ip netns`"+`, or a path
  CLIENT   a DHCP client's name: dhclient, udhcpc or dhcpcd
  GATEWAY  of a default route, in the place of the container's
  MAC      an Ethernet address, or U:WORD for one that is always WORD's

  -i LINK         the link's name in the container (default: eth1)
  -l NAME         the name of its other end, on a bridge
  -a inet|inet6   the address's family
  --ipvlan        share a device by ipvlan, in mode l3
  --direct-phys   move the device itself, or a VLAN of it
  -H NAME         the host name for DHCP (default: the container's)
  --wait          wait until LINK is up in this namespace
  --help, --version

dhcp and CLIENT all ask a DHCP server by cleat's own client.
The lease is extended as long as it is attached, with -f behind the name or not.
route, rule and tc run ip(8) and tc(8) in the container's network.

  pipework br1 web 192.0.2.10/24@192.0.2.1
  pipework eth0 web dhcp
  pipework eth0 -i eth2 web 192.0.2.10/24 U:web@10
  pipework route web add 198.51.100.0/24 via 192.0.2.254
`)
}
