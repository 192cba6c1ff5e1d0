// Package attacher measures how long programs take to give a running container a link and
// to remove it: our own `cleat attach`, the reference CNI plugins, `docker network
// connect`, and the programs of named networks and of those that span hosts (packages named and spanned). It runs
// them by command line.
//
// # Theory of operation
//
// A Host is a namespace with a network card, on which one of these programs runs; for
// `cleat attach` optionally with a keeper, which then does the work. Open attaches
// containers until the next one is the endpoint to be measured. Each Measure makes a
// container, attaches it, checks by netlink when its address can be used, and detaches
// it.
//
//	containers ═ bridge with masquerading ─ host ─ eth0 ═ outside
//	containers ═ macvlan ────────────────── eth0 ═ outside
//
// The clock starts just before the program does, in the host's namespace and in the same
// way for all programs. It stops when the program has ended, or, if the address is
// missing or tentative then, when the address can be used. The check does not add to the
// time if it succeeds at once. Processor time is that of the command and of the children
// that it waited for (getrusage(2)).
//
// An endpoint of a named network also gets a name and publishes a port. Burst attaches many
// of them at the same time.
//
// A network that spans hosts has two: the node outside begins it, and the measured host joins it.
//
// The first endpoint of a bridge creates the bridge, in every measurement: cleat removes
// the bridge with the last endpoint, and the CNI plugin's bridge is removed here.
// Docker's belongs to its network, which is made before. What belongs to a named network
// stays as its program leaves it.
//
// Everything is in the lab: namespaces, the state directory of cleat (CLEAT_STATE_DIR),
// the data directory of host-local, and a Docker daemon of its own (package container).
//
// # Limits
//
// It needs a root lab. Addresses are static, IPv4 and of 198.18.0.0/16 (RFC 2544),
// without detection of duplicates. All measurements of docker-connect use one container.
// The processor time of daemons, and of a keeper, does not count.
//
// Sources: the CNI specification 1.0.0 (environment and configuration), the plugins'
// pages on cni.dev (bridge, macvlan, host-local), docker-network-connect(1).
package attacher
