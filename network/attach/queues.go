package attach

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// queue is a queueing discipline as the kernel tells it, and takes it again: its
// options are nobody's but its own.
type queue struct {
	Kind    string `json:"kind"`
	Handle  uint32 `json:"handle"`
	Options []byte `json:"options,omitempty"`

	parent uint32
}

// queuesOf are the queueing disciplines of a device that somebody set: those that
// the kernel gives by itself have no handle.
func queuesOf(s *side, index int) ([]queue, error) {
	var out []queue
	err := s.ns.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index)})
		messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
		if err != nil {
			return err
		}
		for _, m := range messages {
			head := nl.DeserializeTcMsg(m)
			attrs, err := nl.ParseRouteAttr(m[head.Len():])
			if err != nil {
				return err
			}
			if int(head.Ifindex) != index || head.Handle == 0 {
				continue
			}
			q := queue{Handle: head.Handle, parent: head.Parent}
			for _, a := range attrs {
				switch a.Attr.Type {
				case nl.TCA_KIND:
					q.Kind = strings.TrimRight(string(a.Value), "\x00")
				case nl.TCA_OPTIONS:
					q.Options = slices.Clone(a.Value)
				}
			}
			out = append(out, q)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines of link %d: %w", index, err)
	}
	return out, nil
}

// classless are the kinds that are all there is to them, and whose options the
// kernel takes as it tells them.
var classless = []string{"bfifo", "cake", "codel", "fq", "fq_codel", "fq_pie", "netem", "pfifo", "pfifo_fast", "pfifo_head_drop", "pie", "sfq", "tbf"}

// restorable is the one that comes back with its device: that at its root, if it is
// all that there is.
func restorable(all []queue) *queue {
	if len(all) != 1 || all[0].parent != netlink.HANDLE_ROOT || !slices.Contains(classless, all[0].Kind) {
		return nil
	}
	return &all[0]
}

// queuesLost notes what a device has, and comes back without.
func (p *planner) queuesLost(l netlink.Link) error {
	all, err := queuesOf(p.host, l.Attrs().Index)
	if err != nil || restorable(all) != nil || len(all) == 0 {
		return err
	}
	var kinds []string
	for _, q := range all {
		if !slices.Contains(kinds, q.Kind) {
			kinds = append(kinds, q.Kind)
		}
	}
	p.note("%s comes back without its queueing disciplines (%s), classes and filters: set them again then", l.Attrs().Name, strings.Join(kinds, ", "))
	return nil
}

// set gives a device the queueing discipline.
func (q *queue) set(s *side, index int) error {
	return s.ns.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Handle: q.Handle, Parent: netlink.HANDLE_ROOT})
		req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(q.Kind)))
		if len(q.Options) > 0 {
			req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, q.Options))
		}
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}
