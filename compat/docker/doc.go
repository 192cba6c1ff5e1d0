// Package docker makes networks of cleat a network driver and an IPAM driver of Docker.
//
// # Theory of operation
//
// A Docker daemon sends each step to a Unix socket, as an HTTP request with JSON (Server). The process that
// keeps networks answers it. A container of Docker is an endpoint like any other: it has names,
// rules apply to it, and `cleat net` shows it.
//
//	docker network create   RequestPool, RequestAddress (gateway), GwAllocCheck, CreateNetwork
//	docker run              RequestAddress, CreateEndpoint, Join, ProgramExternalConnectivity
//	docker stop             RevokeExternalConnectivity, Leave, DeleteEndpoint, ReleaseAddress
//	docker network rm       DeleteNetwork, ReleaseAddress (gateway), ReleasePool
//
// CreateEndpoint only notes what the daemon wants (store.go). Join makes the endpoint and the link,
// whose end the daemon moves into the container, often later (attach.Spec.HandOver). Leave does
// nothing, because the daemon then moves the link back to the host. DeleteEndpoint removes it.
//
// An address is requested before the daemon says for which container. It is held for Docker
// (named.HoldAddress), is taken over by the endpoint in Join, and is given back by
// DeleteEndpoint, so it belongs to nobody else until the daemon releases it.
//
// The daemon does not say what a network or a container is called. A network of Cleat has the
// name of the option cleat.network, or docker- and the start of the ID. The name of a container is asked of the
// daemon's API after Join (identify.go): which API belongs to the daemon that sent the request follows from
// its process, which the kernel knows.
//
// Names: 127.0.0.11 is Docker's name server, which knows the containers of Docker. It asks the host's
// servers for other names, and those queries are answered by the gateway's name server (resolvers.go).
// On several networks, if the host's servers are at loopback addresses, or if Docker asks from the host, as
// newer versions do, a name server inside the container takes over when it has started
// (named.Managed.NamesInside).
//
// A daemon that is killed forgets what it has requested, and when it starts again it does not tell
// drivers that are not loaded yet. What is left is found by its link, which is gone with the
// container (named.Keeper), or by asking the daemon (collect.go).
//
// Each request may be repeated: a daemon sends it again if the connection broke, as when the keeper was
// killed.
//
// # Limits
//
// One daemon at a time may use the plug-in's default socket. Swarm's networks and DHCP are not possible.
// `docker ps` does not show published ports of drivers that are plug-ins.
//
// Sources: moby, daemon/libnetwork/docs/remote.md and ipam.md, drivers/remote, pkg/plugins; sd_listen_fds(3).
//
//	s := docker.New(docker.Config{Networks: config, Log: log.Printf})
//	err := s.Keep(ctx, docker.Socket)
package docker
