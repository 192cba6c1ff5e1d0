package qdisc

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// part is one queueing discipline, class or filter.
type part struct {
	Message uint16 `json:"message"` // RTM_NEWQDISC, RTM_NEWTCLASS or RTM_NEWTFILTER
	Parent  uint32 `json:"parent"`
	Handle  uint32 `json:"handle"`
	Info    uint32 `json:"info,omitempty"` // of a filter: priority and protocol
	Kind    string `json:"kind"`
	Options []byte `json:"options,omitempty"`

	chain uint32 // of a filter
	extra bool   // it has a size table or a shared filter block
}

// TCA_INGRESS_BLOCK and TCA_EGRESS_BLOCK (include/uapi/linux/rtnetlink.h).
const tcaIngressBlock, tcaEgressBlock = 13, 14

// dump returns what the kernel answers to a dump request for a device: of filters, those
// attached to parent.
func dump(index int, request, answer uint16, parent uint32) ([]part, error) {
	req := nl.NewNetlinkRequest(int(request), unix.NLM_F_DUMP)
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
				p.extra = true
			}
		}
		if answer == unix.RTM_NEWQDISC && p.Kind == classful {
			if p.Options, err = htbOptions(p.Options); err != nil {
				return nil, err
			}
		}
		all = append(all, p)
	}
	return all, nil
}

func (p part) create(index int) error {
	req := nl.NewNetlinkRequest(int(p.Message), unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Handle: p.Handle, Parent: p.Parent, Info: p.Info})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(p.Kind)))
	if len(p.Options) > 0 {
		req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, p.Options))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// removeRoot removes the queueing discipline at a device's root. The error is ENOENT if there
// is only the kernel's default.
func removeRoot(index int) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELQDISC, unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: netlink.HANDLE_ROOT})
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// htbOptions converts the dumped options of an HTB queueing discipline to the form in which
// the kernel accepts them. It dumps the version without the lower half that it expects, and
// adds a counter (htb_init and htb_dump, net/sched/sch_htb.c).
func htbOptions(options []byte) ([]byte, error) {
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

// filtersOf returns the filters attached to any of the parents. ok is false if one of them
// can't be restored.
func filtersOf(index int, parents []uint32) (all []part, ok bool, err error) {
	for _, parent := range parents {
		filters, err := dump(index, unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, parent)
		if err != nil {
			return nil, false, err
		}
		for _, f := range filters {
			if f.Handle == 0 {
				continue // it only says that there are filters of this priority
			}
			options, ok, err := f.u32Options()
			if err != nil || !ok {
				return nil, false, err
			}
			if f.Options = options; f.Handle&0xfff != 0 { // otherwise it is a table
				all = append(all, f)
			}
		}
	}
	// The kernel numbers tables in the order of their creation.
	slices.SortStableFunc(all, func(a, b part) int { return cmp.Compare(a.Handle>>20, b.Handle>>20) })
	return all, true, nil
}

// u32Tables is the first number of the tables that the kernel creates itself, one per
// priority (gen_new_htid, net/sched/cls_u32.c).
const u32Tables = 0x800

// u32Options returns the options of a u32 filter as the kernel accepts them, without
// counters. ok is false if the filter can't be restored.
func (p *part) u32Options() (options []byte, ok bool, err error) {
	attrs, err := nl.ParseRouteAttr(p.Options)
	if err != nil || p.Kind != "u32" || p.chain != 0 || p.Handle>>20 < u32Tables {
		return nil, false, err
	}
	const flags = nl.TCA_U32_MARK + 1 // TCA_U32_FLAGS
	for _, a := range attrs {
		switch a.Attr.Type {
		case nl.TCA_U32_LINK, nl.TCA_U32_ACT, nl.TCA_U32_POLICE:
			return nil, false, nil
		case nl.TCA_U32_PCNT: // counters
		case flags:
			const skip = 1<<0 | 1<<1 // TCA_CLS_FLAGS_SKIP_HW, TCA_CLS_FLAGS_SKIP_SW
			value := binary.NativeEndian.AppendUint32(nil, binary.NativeEndian.Uint32(a.Value)&skip)
			options = append(options, nl.NewRtAttr(flags, value).Serialize()...)
		default:
			options = append(options, nl.NewRtAttr(int(a.Attr.Type), a.Value).Serialize()...)
		}
	}
	return options, true, nil
}
