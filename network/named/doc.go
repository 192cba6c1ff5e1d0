// Package named makes networks of containers that have names: containers of any engine join a
// network, get addresses and names there, publish ports on the host, and are kept apart from whom
// they must not reach.
//
// # Theory of operation
//
// The files of a state directory say what is wanted (Store): one for each network and one for each
// container on it, its Endpoint. The kernel's devices and rules and the names of the name server
// follow from them. A network or an endpoint exists when its file does, which appears and vanishes
// by one system call.
//
// Each operation, such as Connect, is about one network or one endpoint:
//
//   - It begins a journal that says which, and what the operation may have changed.
//   - It claims what is unique: an address, a name, a port. A claim is a symbolic link whose target
//     is the owner, so two processes can't both make it.
//   - It writes or removes the file.
//   - It brings the kernel and the name server in line with the file.
//   - It removes the journal.
//
// In a process with a background (attach.Config.Background) an engine's call may end before its operation,
// when the kernel has only to remove a link that nobody sees any more, or connections of former owners are
// to be searched for. The journal stays until then.
//
// A journal whose process has died is taken over by the next operation. That brings in line with
// the files whatever the journal is about: what has a file is completed, what has none is removed,
// and so are claims that the file does not have. So an operation takes place as a whole or not at
// all, wherever it was killed. The same code serves operations that fail, and RepairAll, which
// assumes nothing about the kernel.
//
// Links come from package attach, addresses from package ipam, rules from package firewall and DNS
// from package names. A network's bridge is shared by its attachments and its host side, and goes
// with the last of them.
//
// Where a container asks for names follows from all its endpoints together: at a gateway, or inside
// its own network namespace (resolver.go, inside.go). Its resolv.conf is computed from the original
// one each time, so the order in which it joins and leaves networks does not matter.
//
// Rules about who may reach whom have no order. They are compiled into disjoint ranges of addresses,
// protocols and ports, which are elements of one map in the kernel (compile.go). Endpoints that no
// rule names are part of their network's range, so most endpoints add no element.
//
// A change of rules ends the connections that it denies (firewall.Table.EndConnections). Firewalls of
// other programs see the packets of networks too; foreign.go makes exceptions there, or says what to
// type.
//
// A Keeper keeps all this as long as it runs: after a restart of the machine, and when others change
// devices or rules. It owns the table of rules where the kernel knows owners (Linux 6.9), runs
// other processes' operations, and starts the name server again when it ends. What containers have
// works without it, except that nobody restores anything.
//
// While it runs, packets take the fast way of package fastpath. fast.go loads the programs, fastdevices.go finds the
// devices that may have them, and tracking.go changes the settings of connection tracking that they need, and restores
// them.
//
// # Limits
//
// A host has up to MaxNetworks networks, each with one subnet of each address family. A bridge has
// 1,023 ports (BR_PORT_BITS, net/bridge/br_private.h). Packets of networks with a parent don't pass
// the host, which can't filter them or publish their ports.
//
// An operation on one endpoint does as much as if there were no others, unless rules name its
// container or its labels. The kernel does not: it copies a broadcast to all ports of a bridge, and
// finds a file below /proc/sys/net the more slowly the more namespaces there are. A change of rules
// reads all endpoints.
//
//	got, err := named.Connect(ctx, named.Config{Attach: cfg}, "web", "docker:api", named.Connection{Aliases: []string{"db"}})
//	if err != nil {
//		return err
//	}
//	fmt.Println(got.Endpoint.Addresses)
package named
