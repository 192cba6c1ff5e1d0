package firewall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cleat/internal/nlsock"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Watch calls changed whenever anybody may have changed the table, its devices or its routing
// rules, the chains of iptables (iptables-nft) that ForeignDrops examines, or what checks sources of
// packets, until ctx ends; also after changes by this process, except those of an Owner that is given. A few changes in a row may lead to one call. changed does not run twice at the same
// time, and may well find that nothing is wrong: what happens is to Check, or Sync.
//
// Watch first calls ready, if it is not nil, when no later change escapes it. It blocks, and
// returns an error only if it can't watch.
func (t Table) Watch(ctx context.Context, by *Owner, ready, changed func()) error {
	tables, err := t.subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return err
	}
	defer tables.Close()
	routes, err := t.subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF)
	if err != nil {
		return err
	}
	defer routes.Close()
	news := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return listen(ctx, tables, news, t.concernsTables(by)) })
	group.Go(func() error {
		return listen(ctx, routes, news, func(m message) bool { return t.concernsDoorway(m) || concernsSources(m) })
	})
	if ready != nil {
		ready()
	}
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-news:
				changed()
			}
		}
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("watch firewall table %s in %s: %w", t.Name, t.NS, err)
	}
	return nil
}

// port returns the port id of the owner's socket; 0 if there is none.
func (o *Owner) port() uint32 {
	if o == nil {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.k == nil {
		return 0
	}
	return o.k.port
}

// subscribe opens a socket that receives the messages of groups.
func (t Table) subscribe(protocol int, groups ...int) (*os.File, error) {
	fd := -1
	err := t.NS.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		return os.NewSyscallError("socket", err)
	})
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	}
	for _, g := range groups {
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g))
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch firewall table %s in %s: %w", t.Name, t.NS, err)
	}
	// Without privileges in the initial user namespace it stays smaller (net.core.rmem_max). A report
	// too many is harmless.
	for _, option := range []int{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, watchBuffer)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// watchBuffer holds the messages about a change of some 10,000 elements, in bytes. Behind a longer one
// the kernel drops messages, and Watch reports a change that may have been the owner's.
const watchBuffer = 8 << 20

// listen puts a token into news for datagrams that concern the table, and if there were more
// than the socket could hold. It returns when ctx ends.
func listen(ctx context.Context, socket *os.File, news chan<- struct{}, concerns func(message) bool) error {
	stop := context.AfterFunc(ctx, func() { socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		n, err := socket.Read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			n = 0
		case err != nil:
			return err
		}
		found := n == 0
		for m := range messages(buf[:n]) {
			found = found || concerns(m)
		}
		if found {
			select {
			case news <- struct{}{}:
			default: // one is under way
			}
		}
	}
}

// concernsTables returns a function that reports whether a message is about one of the tables,
// and not about a change by the owner, about a chain of iptables that may have exceptions, or about a
// new rule that checks sources.
// Once the owner is closed, another socket may get its port id.
func (t Table) concernsTables(by *Owner) func(message) bool {
	return func(m message) bool {
		if own := by.port(); own != 0 && m.port == own {
			return false
		}
		if m.kind&0xff == unix.NFT_MSG_NEWRULE && checksSources(m.body) {
			return true
		}
		// The name of the table is the first attribute of every kind of object.
		for kind, data := range attributes(m.body) {
			if kind == unix.NFTA_TABLE_NAME {
				return text(data) == t.Name || text(data) == "filter" && concernsIptables(m)
			}
		}
		return false
	}
}

// concernsIptables reports whether a message about a table named filter is about a change of
// one of the chains that isIptables knows, or of a rule there.
func concernsIptables(m message) bool {
	if m.body[0] != unix.NFPROTO_IPV4 && m.body[0] != unix.NFPROTO_IPV6 {
		return false
	}
	name := uint16(0)
	switch m.kind & 0xff {
	case unix.NFT_MSG_NEWCHAIN:
		name = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		name = unix.NFTA_RULE_CHAIN
	default:
		return false
	}
	for kind, data := range attributes(m.body) {
		if kind == name {
			return text(data) == "FORWARD" || text(data) == "OUTPUT"
		}
	}
	return false
}

// concernsDoorway reports whether a message is about the removal of a routing rule or a device
// of the doorway, or a device that is down.
func (t Table) concernsDoorway(m message) bool {
	d := t.doorway()
	switch m.kind {
	case unix.RTM_DELRULE:
		for kind, data := range routeAttributes(m.body, unix.SizeofRtMsg) {
			if kind == unix.FRA_PRIORITY && len(data) == 4 {
				priority := native.Uint32(data)
				return priority >= rulePriority && priority <= vrfRulePriority
			}
		}
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if m.kind == unix.RTM_NEWLINK && isUp(m.body) {
			return false // of no consequence, such as a new state of the carrier
		}
		for kind, data := range routeAttributes(m.body, unix.SizeofIfInfomsg) {
			if kind == unix.IFLA_IFNAME {
				return text(data) == d.in || text(data) == d.out
			}
		}
	}
	return false
}

// isUp reports whether a struct ifinfomsg is that of a device that is up.
func isUp(body []byte) bool {
	const flags = 8 // offset of ifi_flags
	return len(body) >= unix.SizeofIfInfomsg && native.Uint32(body[flags:])&unix.IFF_UP != 0
}

// routeAttributes iterates over the attributes behind a header of some bytes.
func routeAttributes(body []byte, header int) func(func(uint16, []byte) bool) {
	return nlsock.Attributes(body[min(header, len(body)):])
}
