// Package spanned makes networks that span hosts, by the command lines of the programs that ship them: our own
// cleat-node, flannel, Docker, Weave Net, and BIRD.
//
// # Theory of operation
//
// A Cluster is one network of one program, on nodes of the lab. Open makes it, Add makes a node one of its hosts,
// and Host.Run a container on the network.
//
//	container ─ host ═ switch or cable ═ host ─ container
//
// Every program runs with its defaults, but for the address by which hosts reach each other:
//
//   - `cleat-node up` begins the cluster on the first host, and with the token of that host makes the others join.
//     `cleat net create --span` makes the network, `cleat net connect` connects containers.
//   - flanneld runs on each host. Its registry is an etcd without TLS on the first one. Containers are connected by
//     the CNI plug-ins bridge and host-local, with what flanneld has written to its subnet file, as the CNI plug-in of
//     flannel does.
//   - dockerd runs on each host (package container). The daemons are a Swarm, of which the first three are managers,
//     and the network is an attachable one with the driver overlay. Containers are Docker's own. Those of Run are
//     started on the network, others are on an internal network before.
//   - weaver runs on each host, without Docker, and so without names. The first host owns all addresses, and gives
//     others a part. Weave's CNI plug-in connects containers.
//   - BIRD runs on each host, with a BGP session to all others, and announces the host's blocks of addresses. This is
//     Calico's network without encapsulation. Of Calico only the parameters are used, and not its programs: this
//     package writes BIRD's configurations and attaches containers by ip(8).
//
// A Bed is a cluster on a switch, with a container on each host, for measurements of events: how long it takes until
// all hosts have what one of them has changed, or until all notice a fault. An event is over when the containers
// themselves can do what they should: connect to each other, find a name. Package traffic does not take part.
//
// Nothing of the machine is touched: files are in a directory of the lab, and all processes run in network
// namespaces of the lab's nodes, in which Close ends them.
//
// # Limits
//
// It needs a root lab. Networks are 198.18.0.0/16 (RFC 2544), hosts 198.19.0.x.
//
// A Swarm has no address of a host but the one with which it joined, and workers don't know which hosts are gone.
//
// Sources: docker-swarm-init(1), docker-network-create(1); BIRD 2.0 User's Guide; Weave Net's
// documentation ("Allocating IP Addresses", "Integrating Kubernetes via the Addon"); Calico's documentation (IP pools'
// blockSize, "Why does my container have a route to 169.254.1.1?"); flannel's documentation, configuration.md and running.md (options of flanneld, keys in etcd); the CNI
// specification 1.0.0.
//
//	c, err := spanned.Open(ctx, spanned.Config{Name: "cleat-overlay", Dir: dir})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	h, err := c.Add(ctx, node, "node1", addr)
//	if err != nil {
//		return err
//	}
//	k, err := h.Run(ctx, "web1")
package spanned
