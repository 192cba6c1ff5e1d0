// Package attacher gives containers links by other programs' command lines, and
// times them: our own `cleat attach`, the reference CNI plugins, and `docker
// network connect`.
//
// # Theory of operation
//
// A Site is a host made of a namespace, with a network card, and one of these
// programs; `cleat attach` also with a keeper running, which then does the work. Open lets the program attach so many containers that the next one is
// the endpoint asked for. Each Measure makes a container, has it attached, looks
// at once by netlink whether the address can be used, and has it detached.
//
//	containers ═ bridge with masquerading ─ host ─ eth0 ═ outside
//	containers ═ macvlan ────────────────── eth0 ═ outside
//
// The clock runs from just before the program is started, in the host's
// namespace and by the same means for all of them, until it has ended; or, where
// the address is not there by then or is still tentative, until it can be used.
// Looking costs nothing if the first look finds it. Processor time is that of the
// command and of the children that it waited for (getrusage(2)).
//
// What the first endpoint of a bridge makes, the bridge, is there again for none
// of the next measurements: cleat removes it with the last endpoint, and the
// plugin's is removed here. Docker's belongs to its network, which is made before.
//
// Everything is in the lab: namespaces, the state directory of cleat
// (CLEAT_STATE_DIR), host-local's data directory, a daemon of Docker's own
// (package container).
//
// # Limits
//
// A root lab. Static addresses, IPv4, of 198.18.0.0/16 (RFC 2544), in whose
// duplicates nobody is interested. Of Docker one container takes all turns. The
// processor time of its daemon, and of a keeper, is not counted.
//
// Sources: the CNI specification 1.0.0 (environment and configuration), the
// plugins' pages on cni.dev (bridge, macvlan, host-local), docker-network-connect(1).
package attacher
