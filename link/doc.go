// Package link creates, reads and removes kernel network links, one file per
// kind. It also sets what belongs to links and namespaces: hairpin mode, VLANs,
// forwarding and neighbour entries, offloads, rate limits (TBF), bridge netfilter
// and MPTCP endpoints. It lists MPTCP connections.
//
// # Specs and links
//
// A Spec describes a link: a struct of comparable data, one type per kind, such as
// VXLANSpec. It can be a map key, compared with == and built from text by Parse. A
// Link is a handle on a link in the kernel: a namespace and an interface index.
// Create turns the first into the second. Link.Close removes the link.
//
// # Theory of operation
//
// Each kind has a table of fields, the result of its params method: a parameter's
// name in files and command lines, its netlink attribute, and a value that
// converts between text, Go variable and bytes. Validate, Parse, the request to
// the kernel and reading back all follow from that table, so they can't disagree.
// A kind with parameters elsewhere in the message has a complete method as well.
//
// Create validates the spec, looks up parents and creates the link with one route
// netlink message, directly in its target namespace. Then it reads the link back
// and compares it with the spec, because kernels ignore attributes that they don't
// know, and some drivers change values silently. On error it removes what it
// created, by index and not by name, so that an existing link is never touched.
// Requests ask for extended acknowledgements. If the kernel points at an attribute,
// the error is a *ParamError for its parameter.
//
// If the kernel can't create a link in a different namespace from its underlay's,
// Create creates it beside the underlay under a unique name ("cleat" and eight
// characters) and moves it. This happens on kernels before 6.15, which look for the
// name in the wrong namespace, and for ipip and gre, which use the namespace of
// their creation as underlay.
//
// TUN devices and Open vSwitch are not created by route netlink. A TUN device
// exists through its descriptors, which its Link owns. Open vSwitch is configured
// by ovs-vsctl. StartOVS runs a private switch, whose daemons are child processes
// that die with this process.
//
// # Feature probes
//
// Probe reports whether the running kernel, the machine and the process's
// privileges allow a kind, by creating a link in a scratch namespace. It caches
// the result. If they don't, the error is a *Lack with the reason and the remedy,
// derived from the kernel's version and configuration and from the installed
// modules. Create returns a *Lack for the same reasons, and for a single parameter
// that the kernel ignores.
//
// # Conformance suite
//
// TestConformance has a suite for each kind. It creates specs that together set
// every parameter, reads them back, compares them with what the netlink library
// reads, shows for each mode that it passes traffic or isolates, tries invalid
// specs, and compares the namespaces before and after. It skips kinds that Probe
// rejects; package lab/vm runs it on kernels that have them. A new kind is a file,
// an entry in the table of kinds and a suite; tests fail if one of these is missing.
//
// # Limits
//
// Everything needs CAP_NET_ADMIN over the namespaces involved. Root of a user
// namespace has it over the namespaces that belong to the user namespace.
//
// A zero value leaves a parameter to the kernel, so the kernel's own 0 can't be
// requested, except where Off stands for it. Of the tunnels, only VXLAN and Geneve
// run over IPv6. ipip and gre have endpoints and nothing else.
//
// Two kinds of link leave a trace that this package can't remove. A WireGuard
// device that was brought up leaves send_redirects off in its namespace. A link
// created across namespaces leaves the ID by which one namespace knows the other.
//
// # Sources
//
// rtnetlink(7), ip-link(8), bridge(8), tc-tbf(8), wg(8), ovs-vswitchd.conf.db(5),
// include/uapi/linux/if_link.h, if_bridge.h, if_tunnel.h, if_tun.h, mptcp_pm.h,
// inet_diag.h, Documentation/networking/, drivers/net/*.c.
//
// # Example
//
// A macvlan device for the container whose namespace is web:
//
//	l, err := link.Create(host, link.MacvlanSpec{
//		Attrs:  link.Attrs{Name: "eth0"},
//		Parent: "enp1s0",
//		Mode:   link.MacvlanBridge,
//	}, link.Target{NS: web})
//	if err != nil {
//		return err
//	}
//	defer l.Close()
package link
