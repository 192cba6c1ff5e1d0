package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"cleat/netns"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// devconfARPNotify is IPV4_DEVCONF_ARP_NOTIFY (include/uapi/linux/ip.h), the sysctl
	// net.ipv4.conf.LINK.arp_notify.
	devconfARPNotify = 22

	// inetConf is IFLA_INET_CONF (include/uapi/linux/if_link.h).
	inetConf = 1
)

// AnnounceARP has the kernel send an ARP announcement (RFC 5227 section 3) of each IPv4
// address that a link has: whoever has arp_notify on gets that when the link is given an
// Ethernet address, even if it is the one that it has (inetdev_event,
// net/ipv4/devinet.c; dev_set_mac_address, net/core/dev.c). arp_notify is as it was
// afterwards, whatever happens to this process in between: all that there is to do is one
// system call.
//
// What was learnt of the link's neighbours is forgotten. The error is unix.ENETDOWN for a
// link that is down, and unix.EOPNOTSUPP for a driver that does not let its address be
// set; that of hardware may interrupt traffic for it.
func AnnounceARP(ns *netns.NS, index int) error {
	r, err := dial(ns)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.announceARP(index); err != nil {
		return fmt.Errorf("have link %d in %s announced: %w", index, ns, kernelError(err))
	}
	return nil
}

func (r *rtnl) announceARP(index int) error {
	rep, err := r.byIndex(index)
	if err != nil {
		return err
	}
	if !rep.up {
		return unix.ENETDOWN
	}
	on, err := rep.arpNotify()
	if err != nil {
		return err
	}
	again := attribute{Type: unix.IFLA_ADDRESS, Data: rep.top[unix.IFLA_ADDRESS]}
	if on {
		return r.changeLink(index, again)
	}
	var switches [2]attribute
	for value := range switches {
		if switches[value], err = arpNotify(value); err != nil {
			return err
		}
	}
	return r.changeLink(index, switches[1], again, switches[0])
}

// arpNotify reads the sysctl out of what the kernel says of a link.
func (rep *linkInfo) arpNotify() (bool, error) {
	families, err := attributeMap(rep.top[unix.IFLA_AF_SPEC])
	if err != nil {
		return false, err
	}
	inet, err := attributeMap(families[unix.AF_INET])
	if err != nil {
		return false, err
	}
	values, at := inet[inetConf], 4*(devconfARPNotify-1) // of 32 bits each, from number 1 on
	if len(values) < at+4 {
		return false, fmt.Errorf("read arp_notify: %w", unix.EOPNOTSUPP)
	}
	return binary.NativeEndian.Uint32(values[at:]) != 0, nil
}

// arpNotify is the sysctl with a value, as a link message has it (inet_set_link_af,
// net/ipv4/devinet.c).
func arpNotify(value int) (attribute, error) {
	b := uint32Attr(devconfARPNotify, value)
	for _, typ := range []uint16{inetConf, unix.AF_INET, unix.IFLA_AF_SPEC} {
		var err error
		if b, err = nest(typ, []attribute{b}); err != nil {
			return b, err
		}
	}
	return b, nil
}

// changeLink sends one change of a link after the other, all by one system call, and goes
// on where one is refused.
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
