package survey

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"cleat/netns"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// space is a namespace that is held open. It is closed by close.
type space struct {
	place *place
	ns    *netns.NS
	h     *netlink.Handle // nil: it could not be entered
	raw   []netlink.Link
	out   Namespace
	ids   map[int]*space // which namespace it knows by a number; nil: none that is open
}

// errGone says that a namespace vanished before it could be looked at.
var errGone = errors.New("the namespace is gone")

// openSpace opens the namespace by the first path that still leads to it.
func openSpace(p *place) (*space, error) {
	err := errGone
	for _, path := range p.paths {
		ns, e := netns.Open(path)
		if e != nil {
			if !errors.Is(e, os.ErrNotExist) && !errors.Is(e, netns.ErrNotFound) && !errors.Is(e, unix.ESRCH) {
				err = e
			}
			continue
		}
		if id, e := ns.ID(); e == nil && id == p.id {
			return &space{place: p, ns: ns, out: Namespace{ID: p.id}}, nil
		}
		ns.Close() // another by now, or one of another type
	}
	return nil, err
}

func (s *space) close() {
	if s.h != nil {
		s.h.Close()
	}
	s.ns.Close()
}

// read enters the namespace once and takes down what is there.
func (s *space) read(visit func(uint64, []netlink.Link)) error {
	err := s.ns.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open route netlink: %w", err)
		}
		s.h = h
		if s.raw, err = whole(h.LinkList); err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		forward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		s.out.Forwards = err == nil && len(forward) > 0 && forward[0] == '1'
		s.describe()
		if visit != nil {
			visit(s.place.id, s.raw)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.addresses(); err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	s.queues()
	return s.defaults()
}

// whole lists again, once, where links changed meanwhile; then it takes what it gets.
func whole[T any](list func() ([]T, error)) ([]T, error) {
	all, err := list()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		all, err = list()
	}
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return all, nil
	}
	return all, err
}

// describe turns the kernel's links into ours, on a thread inside.
func (s *space) describe() {
	for _, l := range s.raw {
		s.out.Links = append(s.out.Links, newLink(l))
	}
	slices.SortFunc(s.out.Links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortFunc(s.raw, func(a, b netlink.Link) int { return cmp.Compare(a.Attrs().Index, b.Attrs().Index) })
	s.speeds()
}

// speeds asks the drivers of hardware; others make it up.
func (s *space) speeds() {
	if !slices.ContainsFunc(s.out.Links, Link.hardware) {
		return
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return
	}
	defer tool.Close()
	for i := range s.out.Links {
		l := &s.out.Links[i]
		if !l.hardware() {
			continue
		}
		if mbit, err := tool.CmdGet(&ethtool.EthtoolCmd{}, l.Name); err == nil && mbit != unknownSpeed {
			l.SpeedMbit = int(mbit)
		}
	}
}

// unknownSpeed is SPEED_UNKNOWN (include/uapi/linux/ethtool.h).
const unknownSpeed = 1<<32 - 1

func (l Link) hardware() bool { return l.Kind == kindDevice }

func (s *space) addresses() error {
	all, err := whole(func() ([]netlink.Addr, error) { return s.h.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return err
	}
	for _, a := range all {
		ip, ok := netip.AddrFromSlice(a.IP)
		l := s.out.ByIndex(a.LinkIndex)
		if !ok || l == nil {
			continue
		}
		ones, _ := a.Mask.Size()
		l.Addresses = append(l.Addresses, netip.PrefixFrom(ip.Unmap(), ones))
	}
	return nil
}

// queues reads the root queueing discipline of each link, and how it is shaped. A
// kernel without traffic control has none.
func (s *space) queues() {
	all, err := whole(func() ([]netlink.Qdisc, error) { return s.h.QdiscList(nil) })
	if err != nil {
		return
	}
	for _, q := range all {
		a := q.Attrs()
		l := s.out.ByIndex(a.LinkIndex)
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
			l.RateBits = s.classRate(a.LinkIndex)
		}
	}
}

// classRate is what the classes at the root of an HTB may send together at most.
func (s *space) classRate(index int) int64 {
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	classes, err := s.h.ClassList(l, netlink.HANDLE_NONE)
	if err != nil {
		return 0
	}
	var sum uint64
	for _, c := range classes {
		if h, ok := c.(*netlink.HtbClass); ok && h.Attrs().Parent == netlink.HANDLE_ROOT {
			sum += h.Ceil
		}
	}
	return int64(sum) * 8
}

// defaults reads the default routes of the main table.
func (s *space) defaults() error {
	var out []Route
	err := s.h.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{}, 0, func(r netlink.Route) bool {
		if r.Type != unix.RTN_UNICAST || !isDefault(r.Dst) {
			return true
		}
		hops := r.MultiPath
		if len(hops) == 0 {
			hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
		}
		for _, h := range hops {
			out = append(out, s.route(r, h))
		}
		return true
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list routes: %w", err)
	}
	slices.SortStableFunc(out, func(a, b Route) int {
		return cmp.Or(cmp.Compare(btoi(a.IPv6), btoi(b.IPv6)), cmp.Compare(a.Metric, b.Metric))
	})
	s.out.Defaults = out
	return nil
}

func (s *space) route(r netlink.Route, hop *netlink.NexthopInfo) Route {
	out := Route{Index: hop.LinkIndex, Metric: r.Priority, IPv6: r.Family == unix.AF_INET6}
	if via, ok := netip.AddrFromSlice(hop.Gw); ok {
		out.Via = via.Unmap()
	} else if v, ok := hop.Via.(*netlink.Via); ok {
		out.Via, _ = netip.AddrFromSlice(v.Addr)
	}
	if l := s.out.ByIndex(hop.LinkIndex); l != nil {
		out.Link = l.Name
	}
	return out
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
