// Package named makes named networks and connects containers to them, by the command
// lines of the programs that ship them: our own `cleat net`, Docker, netavark (Podman's),
// the reference CNI plugins, and our own plug-in.
//
// # Theory of operation
//
// A Network is one network of one program, with a node of the lab as its host. Open makes
// it. Create makes a container beside it, Connect and Disconnect run the program's own
// commands and measure them, and Run makes a container that is connected already, in the
// way that the program's users do that.
//
//	containers ═ the program's network ─ host ─ published ports
//
// Every program runs with its defaults:
//
//   - `cleat net create` makes the network and starts a keeper, which does the work of
//     `cleat net connect -p` and serves names.
//   - `docker network connect` publishes the ports that the container was created with.
//     A container of Create is on an internal network of its own before, which publishes
//     nothing. One of Run is made by `docker run --network -p`.
//   - `netavark setup` gets the JSON document that Podman writes, with one port mapping for
//     each port, and starts aardvark-dns. It does not choose addresses: Podman does, and
//     here this package. As in Podman, one command follows the other.
//   - The CNI plugins bridge, portmap and firewall run one after the other, as libcni runs
//     them. They serve no names.
//   - cleat-cni, the plug-in for networks of cleat, runs alone, and asks the keeper. Called
//     netavark, it does what netavark does. As Docker's plug-in, the keeper runs beside the
//     daemon (cleat-docker).
//
// Containers are network namespaces with a path, except Docker's, which only connects its
// own. Docker's daemon is the lab's (package container).
//
// All of a program's processes run in the host's network namespace, which nothing else
// uses. So Processes finds them there, and Close ends them: a keeper, a name server and
// aardvark-dns leave the process that started them.
//
// Nothing of the machine is touched. Files are in a directory of the lab. netavark sees
// neither D-Bus nor systemd-run, by which it would change the machine's firewalld and
// control groups.
//
// # Limits
//
// It needs a root lab. Addresses are IPv4, of 198.18.0.0/16 (RFC 2544).
//
// Sources: the CNI specification 1.0.0 (chained plugins, runtimeConfig), portmap's page on
// cni.dev; netavark's NetworkOptions (src/network/types.rs) and Podman's
// libnetwork/netavark; libnetwork's drivers/bridge (port mappings belong to the first
// network that is not internal).
//
//	n, err := named.Open(ctx, named.Config{Name: "cleat-bridge", Host: host, Dir: dir})
//	if err != nil {
//		return err
//	}
//	defer n.Close()
//	c, err := n.Run(ctx, "web1", []named.Port{{Host: 8080, Container: 80}})
package named
