package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"cleat/netns"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// devconfARPNotify is IPV4_DEVCONF_ARP_NOTIFY (include/uapi/linux/ip.h), the sysctl
// net.ipv4.conf.LINK.arp_notify.
const devconfARPNotify = 22

// AnnounceARP makes the kernel send an ARP announcement (RFC 5227 section 3) for
// each IPv4 address of a link. A link with arp_notify set sends them when it is
// given an Ethernet address, even if it is the one that it has (inetdev_event,
// net/ipv4/devinet.c; dev_set_mac_address, net/core/dev.c). AnnounceARP sets
// arp_notify, the address and arp_notify's old value in one system call, so that
// the sysctl is restored even if this process is killed.
//
// The link's neighbour table is flushed. The error is unix.ENETDOWN for a link
// that is down, and unix.EOPNOTSUPP for a driver that can't set the address. A
// hardware driver may interrupt traffic while it sets the address.
func AnnounceARP(ns *netns.NS, index int) error {
	r, err := dial(ns)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.announceARP(index); err != nil {
		return fmt.Errorf("announce the addresses of link %d in %s: %w", index, ns, kernelError(err))
	}
	return nil
}

func (r *rtnl) announceARP(index int) error {
	info, err := r.byIndex(index)
	if err != nil {
		return err
	}
	if !info.up {
		return unix.ENETDOWN
	}
	on, err := info.arpNotify()
	if err != nil {
		return err
	}
	sameMAC := attribute{Type: unix.IFLA_ADDRESS, Data: info.top[unix.IFLA_ADDRESS]}
	if on {
		return r.changeLink(index, sameMAC)
	}
	turnOn, err := arpNotify(1)
	if err != nil {
		return err
	}
	turnOff, err := arpNotify(0)
	if err != nil {
		return err
	}
	return r.changeLink(index, turnOn, sameMAC, turnOff)
}

// arpNotify returns the sysctl from the kernel's description of a link.
func (info *linkInfo) arpNotify() (bool, error) {
	families, err := attributeMap(info.top[unix.IFLA_AF_SPEC])
	if err != nil {
		return false, err
	}
	inet, err := attributeMap(families[unix.AF_INET])
	if err != nil {
		return false, err
	}
	values, at := inet[unix.IFLA_INET_CONF], 4*(devconfARPNotify-1) // 32 bits each, the first is number 1
	if len(values) < at+4 {
		return false, fmt.Errorf("read arp_notify: %w", unix.EOPNOTSUPP)
	}
	return binary.NativeEndian.Uint32(values[at:]) != 0, nil
}

// arpNotify returns the attribute of a link message that sets the sysctl
// (inet_set_link_af, net/ipv4/devinet.c).
func arpNotify(value int) (attribute, error) {
	b := uint32Attr(devconfARPNotify, value)
	for _, typ := range []uint16{unix.IFLA_INET_CONF, unix.AF_INET, unix.IFLA_AF_SPEC} {
		var err error
		if b, err = nest(typ, []attribute{b}); err != nil {
			return b, err
		}
	}
	return b, nil
}

// changeLink sends several changes of a link in one system call. The kernel
// applies each of them, even if it refuses an earlier one.
func (r *rtnl) changeLink(index int, changes ...attribute) error {
	var all []netlink.Message
	for _, c := range changes {
		b, err := pack([]attribute{c})
		if err != nil {
			return err
		}
		all = append(all, netlink.Message{
			Header: netlink.Header{Type: unix.RTM_SETLINK, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(ifinfo(unix.AF_UNSPEC, index), b...),
		})
	}
	if _, err := r.conn.SendMessages(all); err != nil {
		return err
	}
	var errs []error
	for range all {
		_, err := r.conn.Receive()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
