package survey

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"cleat/netns"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// reader reads a namespace, and holds it open until close.
type reader struct {
	candidate *candidate
	ns        *netns.NS       // nil if it could not be opened
	conn      *netlink.Handle // nil if it could not be entered
	raw       []netlink.Link  // in the order of out.Links
	out       Namespace
	byNSID    map[int]*reader // by the number that the namespace has for another; nil: not one of the open ones
}

// errGone means that a namespace vanished before it could be opened.
var errGone = errors.New("the namespace is gone")

// open opens the namespace by the first path that still leads to it.
func (r *reader) open() error {
	result := errGone
	for _, path := range r.candidate.paths {
		ns, err := netns.Open(path)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, netns.ErrNotFound) && !errors.Is(err, unix.ESRCH) {
				result = err
			}
			continue
		}
		if id, err := ns.ID(); err == nil && id == r.candidate.id {
			r.ns = ns
			return nil
		}
		ns.Close() // the path leads to another namespace by now, or to one of another type
	}
	return result
}

func (r *reader) close() {
	if r.conn != nil {
		r.conn.Close()
	}
	if r.ns != nil {
		r.ns.Close()
	}
}

// read enters the namespace once, and reads what is in it.
func (r *reader) read(visit func(uint64, []netlink.Link)) error {
	err := r.ns.Do(func() error {
		conn, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open route netlink: %w", err)
		}
		r.conn = conn
		if r.raw, err = dump(conn.LinkList); err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		slices.SortFunc(r.raw, func(a, b netlink.Link) int { return cmp.Compare(a.Attrs().Index, b.Attrs().Index) })
		for _, l := range r.raw {
			r.out.Links = append(r.out.Links, newLink(l))
		}
		r.readSpeeds()
		forward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		r.out.Forwards = err == nil && len(forward) > 0 && forward[0] == '1'
		if visit != nil {
			visit(r.candidate.id, r.raw)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.readAddresses(); err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	r.readQueues()
	return r.readDefaultRoutes()
}

// dump calls list once more if something changed during the first dump. What it returns then is
// accepted, changed meanwhile or not.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	all, err := list()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		all, err = list()
	}
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		err = nil
	}
	return all, err
}

// unknownSpeed is SPEED_UNKNOWN (include/uapi/linux/ethtool.h).
const unknownSpeed = 1<<32 - 1

// readSpeeds asks the drivers of hardware for its speed. The speeds that other drivers report are
// made up.
func (r *reader) readSpeeds() {
	var tool *ethtool.Ethtool
	for i := range r.out.Links {
		l := &r.out.Links[i]
		if l.Kind != kindDevice {
			continue
		}
		if tool == nil {
			var err error
			if tool, err = ethtool.NewEthtool(); err != nil {
				return
			}
			defer tool.Close()
		}
		if mbit, err := tool.CmdGet(&ethtool.EthtoolCmd{}, l.Name); err == nil && mbit != unknownSpeed {
			l.SpeedMbit = int(mbit)
		}
	}
}

func (r *reader) readAddresses() error {
	all, err := dump(func() ([]netlink.Addr, error) { return r.conn.AddrList(nil, unix.AF_UNSPEC) })
	for _, a := range all {
		ip, ok := netip.AddrFromSlice(a.IP)
		if l := r.out.ByIndex(a.LinkIndex); ok && l != nil {
			ones, _ := a.Mask.Size()
			l.Addresses = append(l.Addresses, netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	return err
}

// readQueues reads the root queueing discipline of each link, and its rate. A kernel without
// traffic control has none.
func (r *reader) readQueues() {
	all, _ := dump(func() ([]netlink.Qdisc, error) { return r.conn.QdiscList(nil) })
	for _, q := range all {
		a := q.Attrs()
		l := r.out.ByIndex(a.LinkIndex)
		if l == nil || a.Parent != netlink.HANDLE_ROOT {
			continue
		}
		l.Qdisc = q.Type()
		if a.Statistics != nil && a.Statistics.Queue != nil {
			l.QdiscDrops = a.Statistics.Queue.Drops
		}
		switch q := q.(type) {
		case *netlink.Tbf:
			l.RateBits = int64(q.Rate) * 8
		case *netlink.Netem:
			l.RateBits = int64(q.Rate64) * 8
		case *netlink.Htb:
			l.RateBits = r.classRate(a.LinkIndex)
		}
	}
}

// classRate returns the sum of the ceilings of an HTB's root classes, in bit/s.
func (r *reader) classRate(index int) int64 {
	classes, _ := r.conn.ClassList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, netlink.HANDLE_NONE)
	var sum uint64
	for _, c := range classes {
		if h, ok := c.(*netlink.HtbClass); ok && h.Attrs().Parent == netlink.HANDLE_ROOT {
			sum += h.Ceil
		}
	}
	return int64(sum) * 8
}

// readDefaultRoutes reads the default routes of the main table, IPv4 first.
func (r *reader) readDefaultRoutes() error {
	err := r.conn.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{}, 0, func(route netlink.Route) bool {
		if route.Type != unix.RTN_UNICAST {
			return true
		}
		if route.Dst != nil {
			if ones, _ := route.Dst.Mask.Size(); ones != 0 {
				return true
			}
		}
		hops := route.MultiPath
		if len(hops) == 0 {
			hops = []*netlink.NexthopInfo{{LinkIndex: route.LinkIndex, Gw: route.Gw, Via: route.Via}}
		}
		for _, h := range hops {
			r.out.DefaultRoutes = append(r.out.DefaultRoutes, r.defaultRoute(route, h))
		}
		return true
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list routes: %w", err)
	}
	slices.SortStableFunc(r.out.DefaultRoutes, func(a, b Route) int {
		switch {
		case a.IPv6 == b.IPv6:
			return cmp.Compare(a.Metric, b.Metric)
		case a.IPv6:
			return 1
		}
		return -1
	})
	return nil
}

func (r *reader) defaultRoute(route netlink.Route, hop *netlink.NexthopInfo) Route {
	out := Route{Index: hop.LinkIndex, Metric: route.Priority, IPv6: route.Family == unix.AF_INET6}
	if via, ok := netip.AddrFromSlice(hop.Gw); ok {
		out.Via = via.Unmap()
	} else if v, ok := hop.Via.(*netlink.Via); ok {
		out.Via, _ = netip.AddrFromSlice(v.Addr)
	}
	if l := r.out.ByIndex(hop.LinkIndex); l != nil {
		out.Link = l.Name
	}
	return out
}
