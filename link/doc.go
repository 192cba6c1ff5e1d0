// Package link makes, reads back and removes kernel network links: one file a
// kind. It also sets what belongs to links and namespaces: bridge ports, VLANs,
// forwarding and neighbour entries, offloads, slow links (TBF), bridge netfilter
// and MPTCP endpoints; and it lists MPTCP connections.
//
// # Theory of operation
//
// A Spec is data: what a link should be. A kind is little more than a table of
// fields: the parameter's name in files and command lines, the netlink
// attribute that holds it, and a value that converts between text, variable and
// bytes. Validate, Parse, the request to the kernel and reading back all follow
// from that table, so they can't disagree.
//
// Create validates the spec, looks up parents and makes the link by one
// route netlink message, directly in the namespace where it is to be. Then it
// reads the link back and compares: kernels ignore attributes that are newer
// than they are, and some drivers change values in silence. Whatever Create made
// before an error, it removes again, by number and not by name, so that a link
// that was there before is never touched. Requests ask for extended
// acknowledgements; where the kernel points at the attribute it objects to, the
// error is a *ParamError for the parameter behind it.
//
// Where the kernel can't make a link away from its underlay, it is made there
// under a name of ours ("cleat" and eight characters) and then moved: kernels
// before 6.15 look for the name in the wrong namespace, and ipip and gre forget
// their underlay when born elsewhere.
//
// A Link is the handle on the kernel object: namespace and number. Link.Spec
// asks the kernel what the link is now, in the same form, so that a
// specification can be compared with the truth.
//
// Probe says whether the running kernel, this machine and our privilege can
// make a kind at all, by making one in a scratch namespace; the answer is
// cached. A Lack carries the reason and the remedy, from the kernel's version
// and configuration and from the modules that are installed.
//
// TUN devices and Open vSwitch are not made by netlink: the first by their
// descriptors, which a Tun owns, the second by ovs-vsctl. StartOVS runs a switch
// of our own, whose daemons are our children and die with us.
//
// # Limits
//
// Everything here needs CAP_NET_ADMIN over the namespaces involved; root of a
// user namespace has it over the namespaces that belong to it.
//
// A zero value leaves a parameter to the kernel, so what the kernel means by 0
// can't be asked for, except where -1 (text "none") or Off stands for it. Tunnels
// over IPv6 exist for VXLAN and Geneve only, and ipip and gre do without
// FOU/GUE encapsulation and external mode.
//
// Two links leave a trace that is not ours to remove: a WireGuard device that
// went up leaves send_redirects off in its namespace, and a link made across
// namespaces leaves the number by which one namespace knows the other.
//
// Sources: rtnetlink(7), ip-link(8), bridge(8), tc-tbf(8), wg(8),
// ovs-vswitchd.conf.db(5), include/uapi/linux/if_link.h, if_bridge.h,
// if_tunnel.h, if_tun.h, mptcp_pm.h, inet_diag.h, Documentation/networking/, drivers/net/*.c.
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
