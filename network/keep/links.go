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

// links has the kernel say when a link changes or goes, in this namespace and in all
// that it has a number for. Such a number keeps no namespace alive, as a socket in
// there would.
type links struct {
	ask *netlink.Handle // in the host's namespace
	mu  sync.Mutex
}

// listenLinks listens in the namespace of the calling thread.
func listenLinks(ctx context.Context, heard *sync.WaitGroup, w *woken) (*links, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("listen for links: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK})
	}
	var ask *netlink.Handle
	if err == nil {
		ask, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("listen for links: %w", err)
	}
	heard.Go(func() {
		defer file.Close()
		read(ctx, file, fromKernel(file), func(b []byte, err error) {
			w.add(func(h *happenings) { h.heard(b, err) })
		})
	})
	return &links{ask: ask}, nil
}

// fromKernel receives from a netlink socket what the kernel sends (port 0): others with
// CAP_NET_ADMIN may send, too. Theirs is nothing.
func fromKernel(file *os.File) func([]byte) (int, error) {
	return func(b []byte) (n int, err error) {
		conn, err := file.SyscallConn()
		if err != nil {
			return 0, err
		}
		var from unix.Sockaddr
		var inner error
		err = conn.Read(func(fd uintptr) bool {
			n, from, inner = unix.Recvfrom(int(fd), b, 0)
			return !errors.Is(inner, unix.EAGAIN)
		})
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 {
			n = 0
		}
		return max(n, 0), errors.Join(err, inner)
	}
}

// heard notes which links messages are about; an error is that some were lost.
func (h *happenings) heard(b []byte, err error) {
	all, parseErr := syscall.ParseNetlinkMessage(b)
	if err != nil || parseErr != nil {
		h.lost = true
		return
	}
	if h.links == nil {
		h.links, h.names = map[int]bool{}, map[string]bool{}
	}
	for i := range all {
		m := &all[i]
		if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		h.links[int(int32(binary.NativeEndian.Uint32(m.Data[4:])))] = true // ifi_index
		if name := nameIn(m.Data[unix.SizeofIfInfomsg:]); name != "" {
			h.names[name] = true
		}
	}
}

// nameIn is the link's name among attributes (struct rtattr, rtnetlink(7)); "" if they have
// none, or end in the middle.
func nameIn(attrs []byte) string {
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

// listenTo gives the namespace of an attachment's container a number here, if it has
// none. What fails is noticed by looking.
func (k *keeper) listenTo(a *attach.Attachment) {
	if k.links == nil {
		return
	}
	ns, err := netns.Open(a.Container.Path)
	if err != nil {
		return
	}
	defer ns.Close()
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	if id, err := k.links.ask.GetNetNsIdByFd(ns.Fd()); err == nil && id >= 0 {
		return
	}
	const free = -1
	if err := k.links.ask.SetNetNsIdByFd(ns.Fd(), free); err != nil && !errors.Is(err, unix.EEXIST) {
		k.woken.note("listen for links of %s: %v", a.ID, err)
	}
}
