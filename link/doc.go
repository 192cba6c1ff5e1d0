// Package link makes, reads back and removes kernel network links: one file a
// kind.
//
// # Theory of operation
//
// A Spec is data: what a link should be. Create validates it, makes the link in
// one namespace (or directly in another, as IFLA_NET_NS_FD allows) and returns
// a Link, the handle on the kernel object. Link.Spec asks the kernel what the
// link is now, in the same form, so that a specification can be compared with
// the truth. Whatever Create made before an error, it removes again.
//
// Probe says whether the running kernel, this machine and our privilege can
// make a kind at all, by making one in a scratch namespace; the answer is
// cached. A Lack carries the reason and the remedy.
//
// # Limits
//
// Everything here needs CAP_NET_ADMIN over the namespaces involved; root of a
// user namespace has it over the namespaces that belong to it.
//
// Sources: rtnetlink(7), include/uapi/linux/if_link.h, drivers/net/*.c.
package link
