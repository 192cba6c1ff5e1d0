// Package netavark gives Podman's containers networks of cleat, in the place of netavark and aardvark-dns,
// or as a plug-in of netavark.
//
// # Theory of operation
//
// Podman starts a program called netavark for each container that starts or ends, with a command line, and
// JSON on its standard input. That program is cmd/cleat-cni, which sends both to a running keeper, or starts
// `cleat` if there is none. Either calls Run. So a container of Podman is an endpoint like any other: it has
// names, rules apply to it, and `cleat net` shows it.
//
// A network of Podman is in Podman's files, and setup gets it with each container. Cleat's network for it is
//
//   - one of its name that a person has made and that has its subnets: containers of other engines may be on it,
//   - or one that setup makes for the first container. Its last container takes it along.
//
// Podman chooses the addresses, unless cleat does as a plug-in ("ipam_options": {"driver": "cleat"}).
// Containers are told to ask the gateway for names. Names are in the domain dns.podman as well, in which they
// look first.
//
// All networks of a container are joined, or none. A teardown goes as far as possible, and needs neither the
// container's namespace nor the configuration directory.
//
// Podman without root calls netavark in a user and a network namespace of its own. There is another host,
// whose state is below the directory of --config (args.Line.StateDir) and which has a keeper of its own. The
// keeper ends when the last network is gone, or the directory.
//
// # Files
//
//	args               the command line; small, for cmd/cleat-cni
//	run.go             commands and errors
//	types.go           what Podman sends and reads
//	create.go, validate.go   completes a new network; changes nothing
//	convert.go         a network and a container of Podman as cleat's
//	setup.go, teardown.go, plugin.go
//
// # Limits
//
// A network has one subnet of each address family. The port of NETAVARK_DNS_PORT is ignored: names are served
// at port 53 of the gateway.
//
// Sources: netavark's docs, plugin-API.md and tests; Podman's libnetwork.
//
//	code := netavark.Run(ctx, netavark.Host{Networks: cfg}, netavark.Call{Args: os.Args[1:], Stdin: text, Out: os.Stdout})
package netavark
