package attach

import (
	"encoding/binary"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What hangs from a queueing discipline with classes: the kernel drops all of it with the
// first move of a device (dev_shutdown, net/sched/sch_generic.c), so it is taken down as the
// kernel tells it, and made anew. That is done for what the kernel takes as it tells it.

// part is one class, queueing discipline or filter.
type part struct {
	Message uint16 `json:"message"` // that makes it: RTM_NEWTCLASS, RTM_NEWQDISC, RTM_NEWTFILTER
	Parent  uint32 `json:"parent"`
	Handle  uint32 `json:"handle"`
	Info    uint32 `json:"info,omitempty"` // of a filter: priority and protocol
	Kind    string `json:"kind"`
	Options []byte `json:"options,omitempty"`

	chain  uint32
	beside bool // it has what is no option of its kind: a size table, or filters that others share
}

// classful are the kinds whose classes and their own options the kernel takes as it tells
// them.
var classful = []string{"htb"}

// TCA_INGRESS_BLOCK and TCA_EGRESS_BLOCK (include/uapi/linux/rtnetlink.h).
const tcaIngressBlock, tcaEgressBlock = 13, 14

// partsOf asks for what there is of a device: of filters, those of one parent.
func partsOf(index int, ask, answer uint16, parent uint32) ([]part, error) {
	req := nl.NewNetlinkRequest(int(ask), unix.NLM_F_DUMP)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: parent})
	messages, err := req.Execute(unix.NETLINK_ROUTE, answer)
	if err != nil {
		return nil, err
	}
	var all []part
	for _, m := range messages {
		head := nl.DeserializeTcMsg(m)
		attrs, err := nl.ParseRouteAttr(m[head.Len():])
		if err != nil {
			return nil, err
		}
		if int(head.Ifindex) != index {
			continue
		}
		p := part{Message: answer, Parent: head.Parent, Handle: head.Handle, Info: head.Info}
		for _, a := range attrs {
			switch a.Attr.Type {
			case nl.TCA_KIND:
				p.Kind = unix.ByteSliceToString(a.Value)
			case nl.TCA_OPTIONS:
				p.Options = slices.Clone(a.Value)
			case nl.TCA_CHAIN:
				p.chain = binary.NativeEndian.Uint32(a.Value)
			case nl.TCA_STAB, tcaIngressBlock, tcaEgressBlock:
				p.beside = true
			}
		}
		if answer == unix.RTM_NEWQDISC {
			if p.Options, err = taken(p.Kind, p.Options); err != nil {
				return nil, err
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// make has the kernel make it, on a device.
func (p part) make(index int) error {
	req := nl.NewNetlinkRequest(int(p.Message), unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Handle: p.Handle, Parent: p.Parent, Info: p.Info})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(p.Kind)))
	if len(p.Options) > 0 {
		req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, p.Options))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// remove removes what is in the place of a queueing discipline; ENOENT: nothing is.
func (p part) remove(index int) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELQDISC, unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: p.Parent})
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// taken are a queueing discipline's options as the kernel takes them. Of HTB's version it
// tells a number whose upper half it wants (htb_init and htb_dump, net/sched/sch_htb.c), and
// beside it what it has counted.
func taken(kind string, options []byte) ([]byte, error) {
	if kind != "htb" {
		return options, nil
	}
	attrs, err := nl.ParseRouteAttr(options)
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, a := range attrs {
		value := slices.Clone(a.Value)
		if a.Attr.Type == nl.TCA_HTB_INIT && len(value) >= nl.SizeofTcHtbGlob { // struct tc_htb_glob
			binary.NativeEndian.PutUint32(value, binary.NativeEndian.Uint32(value)>>16)
			clear(value[16:20]) // direct_pkts
		}
		out = append(out, nl.NewRtAttr(int(a.Attr.Type), value).Serialize()...)
	}
	return out, nil
}

// below are the parts that hang from a root, in the order in which they can be made: each
// queueing discipline, its classes, filters last. false: there is what the kernel would not
// take so.
func below(index int, root queue, others []queue) ([]part, bool, error) {
	classes, err := partsOf(index, unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS, 0)
	if err != nil {
		return nil, false, err
	}
	classes = slices.DeleteFunc(classes, func(c part) bool { return slices.Contains(classless, c.Kind) }) // those show what they hold so
	var made []part
	has := []uint32{root.Handle}
	take := func(p part) {
		made = append(made, p)
		has = append(has, p.Handle)
	}
	for grown := true; grown; { // what hangs from what is there already
		grown = false
		classes = slices.DeleteFunc(classes, func(c part) bool {
			top := c.Parent == netlink.HANDLE_ROOT && slices.Contains(has, c.Handle&0xffff0000)
			if !top && !slices.Contains(has, c.Parent) {
				return false
			}
			c.Info = 0 // the handle of what hangs from it
			take(c)
			grown = true
			return true
		})
		others = slices.DeleteFunc(slices.Clone(others), func(q queue) bool {
			if !slices.Contains(has, q.parent) {
				return false
			}
			take(part{Message: unix.RTM_NEWQDISC, Parent: q.parent, Handle: q.Handle, Kind: q.Kind, Options: q.Options})
			grown = true
			return true
		})
	}
	if len(others)+len(classes) > 0 || slices.ContainsFunc(made, func(p part) bool {
		return !slices.Contains(classful, p.Kind) && (p.Message == unix.RTM_NEWTCLASS || !slices.Contains(classless, p.Kind))
	}) {
		return nil, false, nil
	}
	filters, ok, err := filtersOf(index, has)
	return append(made, filters...), ok, err
}

// filtersOf are the filters of parents. false: there are others than those of kind u32 in
// one table and without actions.
func filtersOf(index int, parents []uint32) ([]part, bool, error) {
	var all []part
	for _, parent := range parents {
		some, err := partsOf(index, unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, parent)
		if err != nil {
			return nil, false, err
		}
		for _, f := range some {
			if f.Handle == 0 {
				continue // says that there is one of this priority
			}
			is, ok, err := f.plain()
			if err != nil || !ok {
				return nil, false, err
			}
			if is {
				all = append(all, f)
			}
		}
	}
	// The kernel numbers tables as they come.
	slices.SortStableFunc(all, func(a, b part) int { return int(a.Handle>>20) - int(b.Handle>>20) })
	return all, true, nil
}

// u32Tables is the number from which on the kernel makes tables of its own, one for each
// priority (gen_new_htid, net/sched/cls_u32.c).
const u32Tables = 0x800

// plain makes a filter one that the kernel takes. is: it is no table.
func (p *part) plain() (is, ok bool, err error) {
	attrs, err := nl.ParseRouteAttr(p.Options)
	if err != nil {
		return false, false, err
	}
	if p.Kind != "u32" || p.chain != 0 || p.Handle>>20 < u32Tables {
		return false, false, nil
	}
	const flags = nl.TCA_U32_MARK + 1 // TCA_U32_FLAGS
	p.Options = nil
	for _, a := range attrs {
		switch a.Attr.Type {
		case nl.TCA_U32_LINK, nl.TCA_U32_ACT, nl.TCA_U32_POLICE:
			return false, false, nil
		case nl.TCA_U32_PCNT: // what it has counted
		case flags:
			const skip = 1<<0 | 1<<1 // TCA_CLS_FLAGS_SKIP_HW, TCA_CLS_FLAGS_SKIP_SW
			value := binary.NativeEndian.AppendUint32(nil, binary.NativeEndian.Uint32(a.Value)&skip)
			p.Options = append(p.Options, nl.NewRtAttr(flags, value).Serialize()...)
		default:
			p.Options = append(p.Options, nl.NewRtAttr(int(a.Attr.Type), a.Value).Serialize()...)
		}
	}
	return p.Handle&0xfff != 0, true, nil
}
