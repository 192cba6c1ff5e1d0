package keep

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"cleat/netns"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listenLinks receives the kernel's messages about links that change or vanish, in the network
// namespace of the calling thread and in those that have a number there. Unlike a socket in a
// namespace, such a number does not keep the namespace alive. It returns a socket for giving
// numbers.
func listenLinks(ctx context.Context, listeners *sync.WaitGroup, q *eventQueue) (*netlink.Handle, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("listen for links: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK})
	}
	var conn *netlink.Handle
	if err == nil {
		conn, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("listen for links: %w", err)
	}
	listeners.Go(func() {
		defer file.Close()
		from := receiver{file: file}
		read(ctx, file, from.receive, func(b []byte, err error) {
			q.add(func(e *events) { e.addLinks(from.nsid, b, err) })
		})
	})
	return conn, nil
}

// linkID identifies a link of the host or of a container.
type linkID struct {
	nsid  int // number of the network namespace in the host's; ownNSID: the host's own
	index int // ifindex; 0: no link
}

// ownNSID is how the kernel's messages are counted that have no number of a namespace.
const ownNSID = -1

// receiver receives netlink messages about links.
type receiver struct {
	file *os.File
	nsid int // of the last messages
}

// receive receives messages of the kernel (port 0). Messages of others, who need CAP_NET_ADMIN
// to send them, count as empty.
func (r *receiver) receive(b []byte) (n int, err error) {
	conn, err := r.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var from unix.Sockaddr
	var inner error
	control := make([]byte, unix.CmsgSpace(4))
	var controlBytes int
	err = conn.Read(func(fd uintptr) bool {
		n, controlBytes, _, from, inner = unix.Recvmsg(int(fd), b, control, 0)
		return !errors.Is(inner, unix.EAGAIN)
	})
	if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 {
		n = 0
	}
	r.nsid = nsidOf(control[:max(controlBytes, 0)])
	return max(n, 0), errors.Join(err, inner)
}

// nsidOf returns the number of the namespace in a control message (netlink_cmsg_listen_all_nsid,
// net/netlink/af_netlink.c).
func nsidOf(control []byte) int {
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return ownNSID
	}
	for _, m := range all {
		if m.Header.Level == unix.SOL_NETLINK && m.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(m.Data) >= 4 {
			return int(int32(binary.NativeEndian.Uint32(m.Data)))
		}
	}
	return ownNSID
}

// addLinks adds the links that netlink messages from a namespace are about. An error means that
// some were lost.
func (e *events) addLinks(nsid int, b []byte, err error) {
	all, parseErr := syscall.ParseNetlinkMessage(b)
	if err != nil || parseErr != nil {
		e.linksLost = true
		return
	}
	if e.links == nil {
		e.links, e.linkNames = map[linkID]bool{}, map[string]bool{}
	}
	for i := range all {
		m := &all[i]
		if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		e.links[linkID{nsid, int(int32(binary.NativeEndian.Uint32(m.Data[4:])))}] = true // ifi_index
		if name := linkName(m.Data[unix.SizeofIfInfomsg:]); name != "" {
			e.linkNames[name] = true
		}
	}
}

// linkName returns the link's name among attributes (struct rtattr, rtnetlink(7)), "" if they have
// none or are cut short.
func linkName(attrs []byte) string {
	for len(attrs) >= unix.SizeofRtAttr {
		size, kind := int(binary.NativeEndian.Uint16(attrs)), binary.NativeEndian.Uint16(attrs[2:])
		if size < unix.SizeofRtAttr || size > len(attrs) {
			return ""
		}
		if kind == unix.IFLA_IFNAME {
			return string(bytes.TrimRight(attrs[unix.SizeofRtAttr:size], "\x00"))
		}
		const align = unix.RTA_ALIGNTO - 1
		attrs = attrs[min(len(attrs), (size+align)&^align):]
	}
	return ""
}

// listenTo makes the listener hear of the container's links, and returns the number of its
// namespace in the host's. It gets one if it has none. If that fails, changes are noticed at the
// next look.
func (k *keeper) listenTo(a *attach.Attachment) (nsid int) {
	if k.links == nil {
		return ownNSID
	}
	ns, err := netns.Open(a.Container.Path)
	if err != nil {
		return ownNSID
	}
	defer ns.Close()
	k.linksMu.Lock()
	defer k.linksMu.Unlock()
	if id, err := k.links.GetNetNsIdByFd(ns.Fd()); err == nil && id >= 0 {
		return id
	}
	const anyFree = -1
	if err := k.links.SetNetNsIdByFd(ns.Fd(), anyFree); err != nil && !errors.Is(err, unix.EEXIST) {
		k.events.logLater("listen for links of %s: %v", a.ID, err)
	}
	if id, err := k.links.GetNetNsIdByFd(ns.Fd()); err == nil && id >= 0 {
		return id
	}
	return ownNSID
}
