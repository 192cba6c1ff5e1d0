// Package overlay joins hosts to a cluster whose networks span all of them.
//
// # Theory of operation
//
// A Node runs on each host. What the hosts have in common is in the registry (package registry, etcd), of
// which some hosts run a member (package member). A Node mirrors the registry, and its Dataplane makes this
// host's kernel and name server as the mirror says. A Node whose registry does not answer goes on with what
// it had, also after a restart: the mirror is in a file.
//
// Each host has blocks of the addresses of each network, and gives them to its containers by itself. Packets
// to the containers of another host follow one route for each of its blocks, so a container that comes or
// goes changes no other host's kernel. Hosts tell each other about endpoints for their names and for policies.
//
//	this host's files ──Dataplane.Endpoints──▶ Node ──▶ registry ──▶ Nodes of the others
//	this host's kernel ◀──Dataplane.Apply───── Node ◀── registry ◀── Nodes of the others
//
// Hosts speak with each other through one port (package gate), and know each other by keys (package trust).
//
// The member that leads the registry looks after its members (members.go): three of three to seven hosts, five
// of more.
//
// The registry may also be an etcd that no host runs (external.go). It may be older than what hosts know
// (restored.go), and so may the data of a member (stale.go). The addresses of a dead host are free after a time
// (hold.go).
//
// # Files
//
//	DIR/node.json       Settings
//	DIR/identity.pem    the host's key and certificate
//	DIR/authority.pem   the authority's key, on members of the registry
//	DIR/mirror.json     what the registry had
//	DIR/contact.json    when the registry last answered
//	DIR/etcd/           the data of the registry's member
//	DIR/etcd.old/       the same, from before the registry was restored from a backup
//	DIR/node.socket     for requests (package control)
package overlay
