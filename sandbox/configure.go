package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// configure makes the namespace usable: all of it in one write of route netlink
// messages, whose answers come in the same order.
func (i *Guest) configure() error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return &SetupError{Step: "open a netlink socket", Err: err}
	}
	defer conn.Close()
	// Its own loopback is what every namespace needs, whoever sets up the rest.
	steps := []netlinkStep{{what: "bring loopback up", msg: linkMessage(loopbackIndex, unix.IFF_UP, nil)}}
	if i.plan.Configure {
		index, err := linkIndex(conn, i.plan.Interface)
		if err != nil {
			return &SetupError{Step: fmt.Sprintf("find device %q", i.plan.Interface), Err: err}
		}
		steps = append(steps, i.steps(index)...)
	}
	return i.carryOut(conn, steps)
}

// setSysctls sets what can be set. A kernel without IPv6 has none of IPv6's, and
// then nobody misses them.
func (i *Guest) setSysctls() {
	for _, s := range i.plan.Sysctls {
		err := sysctl(s[0], s[1])
		if err != nil && (i.plan.Need6 || !strings.HasPrefix(s[0], "net/ipv6/")) {
			i.warn("set sysctl: %v", err)
		}
	}
}

// loopbackIndex is the same in every namespace: LOOPBACK_IFINDEX
// (include/net/flow.h).
const loopbackIndex = 1

// netlinkStep is one request, and what it is for.
type netlinkStep struct {
	what  string
	v6    bool // of IPv6 alone
	spare bool // the network works without
	msg   netlink.Message
}

func (i *Guest) carryOut(conn *netlink.Conn, steps []netlinkStep) error {
	// Names the attribute that the kernel objects to; an old kernel says less.
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	msgs := make([]netlink.Message, len(steps))
	for n, s := range steps {
		msgs[n] = s.msg
	}
	if _, err := conn.SendMessages(msgs); err != nil {
		return &SetupError{Step: "configure device", Err: err}
	}
	var errs []error
	for _, s := range steps {
		_, err := conn.Receive()
		switch {
		case err == nil || s.spare:
		case s.v6 && !i.plan.Need6 && noIPv6(err):
			i.warn("%s: %v: the network has no IPv6", s.what, err)
		default:
			errs = append(errs, &SetupError{Step: s.what, Err: err, Remedy: namespaceRemedy(err)})
		}
	}
	if len(errs) > 0 {
		return errs[0] // the others follow from it
	}
	return nil
}

// noIPv6 tells whether an error means that the kernel has no IPv6, or that it is
// switched off.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV)
}

// steps are the requests. A device without link layer needs no neighbours, and a
// network without others no duplicate address detection: every address works at
// once.
func (i *Guest) steps(index int) []netlinkStep {
	p := &i.plan
	var all []netlinkStep
	add := func(what string, v6 bool, m netlink.Message) {
		all = append(all, netlinkStep{what: what, v6: v6, msg: m})
	}
	add("switch IPv6's own addresses off", true, linkMessage(index, 0, noOwnAddress))
	all = append(all, netlinkStep{what: "take the queueing discipline away", spare: true, msg: noQueueMessage(index)})
	add("bring device up", false, linkMessage(index, unix.IFF_UP, func(ae *netlink.AttributeEncoder) {
		ae.Uint32(unix.IFLA_MTU, uint32(p.MTU))
		ae.Uint32(unix.IFLA_TXQLEN, txQueueLen)
	}))
	for _, f := range []struct {
		addr    netip.Prefix
		gateway netip.Addr
	}{{p.Addr4, p.Gateway4}, {p.Addr6, p.Gateway6}} {
		if !f.addr.IsValid() {
			continue
		}
		v6 := f.addr.Addr().Is6()
		add("add address "+f.addr.String(), v6, addressMessage(index, f.addr))
		add("add default route via "+f.gateway.String(), v6, defaultRouteMessage(index, f.addr, f.gateway))
	}
	return all
}

// txQueueLen is in packets of up to 64 KiB; a full queue drops. The default of
// 500 fills when many streams begin at once; 1000 are 6 ms of datagrams at 2
// Gbit/s, for which a busy machine may keep the helper from running.
const txQueueLen = 4096

// noQueueMessage has packets go straight to the device, whose own queue does all
// that one is needed for: the kernel's default takes a lock and 5 % of a round
// trip, and of a device with several queues, megabytes for 256.
func noQueueMessage(index int) netlink.Message {
	// struct tcmsg: family, index, handle, parent, info
	b := make([]byte, sizeofTcmsg)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[12:], tcRoot)
	return message(unix.RTM_NEWQDISC, acknowledged|netlink.Create|netlink.Replace, b, func(ae *netlink.AttributeEncoder) {
		ae.String(tcaKind, "noqueue")
	})
}

// Of include/uapi/linux/pkt_sched.h and rtnetlink.h.
const (
	sizeofTcmsg = 20
	tcRoot      = 0xffffffff // TC_H_ROOT
	tcaKind     = 1          // TCA_KIND
)

// noOwnAddress keeps the kernel from making a link-local address, which nobody
// would answer, and from asking for routers.
func noOwnAddress(ae *netlink.AttributeEncoder) {
	ae.Nested(unix.IFLA_AF_SPEC, func(af *netlink.AttributeEncoder) error {
		af.Nested(unix.AF_INET6, func(v6 *netlink.AttributeEncoder) error {
			const none = 1 // IN6_ADDR_GEN_MODE_NONE (include/uapi/linux/if_link.h)
			v6.Uint8(unix.IFLA_INET6_ADDR_GEN_MODE, none)
			return nil
		})
		return nil
	})
}

const acknowledged = netlink.Request | netlink.Acknowledge

func linkMessage(index int, flags uint32, attrs func(*netlink.AttributeEncoder)) netlink.Message {
	// struct ifinfomsg: family, type, index, flags, which flags
	b := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[8:], flags)
	native.PutUint32(b[12:], flags)
	return message(unix.RTM_NEWLINK, acknowledged, b, attrs)
}

func addressMessage(index int, p netip.Prefix) netlink.Message {
	// struct ifaddrmsg: family, prefix length, flags, scope, index
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1] = addressFamily(p.Addr()), byte(p.Bits())
	native.PutUint32(b[4:], uint32(index))
	return message(unix.RTM_NEWADDR, acknowledged|netlink.Create|netlink.Excl, b, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice())
		ae.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())
		if p.Addr().Is6() {
			ae.Uint32(unix.IFA_FLAGS, unix.IFA_F_NODAD)
		}
	})
}

func defaultRouteMessage(index int, p netip.Prefix, gateway netip.Addr) netlink.Message {
	// struct rtmsg: family, lengths of destination and source, TOS, table,
	// protocol, scope, type, flags
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[4], b[5], b[6], b[7] = addressFamily(gateway), unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST
	if !p.Contains(gateway) {
		native.PutUint32(b[8:], unix.RTNH_F_ONLINK)
	}
	return message(unix.RTM_NEWROUTE, acknowledged|netlink.Create|netlink.Excl, b, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(unix.RTA_GATEWAY, gateway.AsSlice())
		ae.Uint32(unix.RTA_OIF, uint32(index))
	})
}

func addressFamily(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// message puts a request together. Encoding fails for attributes over 64 KiB
// only, which these are not.
func message(kind netlink.HeaderType, flags netlink.HeaderFlags, head []byte, attrs func(*netlink.AttributeEncoder)) netlink.Message {
	ae := netlink.NewAttributeEncoder()
	if attrs != nil {
		attrs(ae)
	}
	tail, _ := ae.Encode()
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: flags}, Data: append(head, tail...)}
}

// linkIndex asks by ioctl: a netlink request would bring a kilobyte about the
// link.
func linkIndex(conn *netlink.Conn, name string) (int, error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.IoctlIfreq(int(fd), unix.SIOCGIFINDEX, ifr) }); err != nil {
		return 0, err
	}
	return int(ifr.Uint32()), failed
}

// removeTUN removes the TUN or TAP of that name in the calling thread's
// namespace. Another kind of link is somebody's own, and an error.
func removeTUN(name string) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	byName := func(kind netlink.HeaderType, flags netlink.HeaderFlags) ([]netlink.Message, error) {
		return conn.Execute(message(kind, flags, make([]byte, unix.SizeofIfInfomsg), func(ae *netlink.AttributeEncoder) {
			ae.String(unix.IFLA_IFNAME, name)
		}))
	}
	found, err := byName(unix.RTM_GETLINK, netlink.Request) // the answer is all there is
	if err != nil {
		return fmt.Errorf("look at link %q: %w", name, err)
	}
	if kind := linkKind(found); kind != "tun" {
		return fmt.Errorf("remove link %q: it is of kind %q, not a TUN or TAP: %w", name, kind, unix.EBUSY)
	}
	if _, err := byName(unix.RTM_DELLINK, acknowledged); err != nil {
		return fmt.Errorf("remove link %q: %w", name, err)
	}
	return nil
}

// linkKind is IFLA_INFO_KIND of the answer to RTM_GETLINK; "" for hardware.
func linkKind(answer []netlink.Message) (kind string) {
	for _, m := range answer {
		if len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return ""
		}
		for ad.Next() {
			if ad.Type() != unix.IFLA_LINKINFO {
				continue
			}
			ad.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == unix.IFLA_INFO_KIND {
						kind = info.String()
					}
				}
				return nil
			})
		}
	}
	return kind
}
