package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	tbfBuffer = 28                   // offset of tc_tbf_qopt.buffer
	schedTick = 64 * time.Nanosecond // unit of tc_tbf_qopt.buffer
)

// ParamNames returns the names of the parameters that Parse accepts for a kind.
func ParamNames(kind string) []string {
	k, _ := findKind(kind)
	var names []string
	for _, f := range k.defaults() {
		if f.name != "" {
			names = append(names, f.name)
		}
	}
	return names
}

// Params is the reverse of Parse: it returns every parameter that is not left
// to the kernel, as text. Keys are hidden.
func Params(spec Spec) map[string]string {
	out := map[string]string{}
	k := kindOf(spec)
	defaults := k.defaults()
	for i, f := range k.params(spec) {
		if f.name != "" && f.val.text() != defaults[i].val.text() {
			out[f.name] = redact(f.val, f.val.text())
		}
	}
	return out
}

// Offloads reports which offloads are on, by the short names of SetOffload and by
// the kernel's names of features. A group is on if any of its features is.
func (l *Link) Offloads() (map[string]bool, error) {
	w := l.current()
	e, all, err := w.features()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	out := map[string]bool{}
	for f, s := range all {
		out[f] = s.Active
	}
	for name := range offloads {
		for _, f := range featuresOf(name, all) {
			out[name] = out[name] || all[f].Active
		}
	}
	return out, nil
}

// ReadShaping returns the shaping of l and the longest time in the queue, which is 0 if l
// is not shaped. The burst is exact up to the kernel's rounding.
func ReadShaping(l *Link) (s Shaping, latency time.Duration, err error) {
	w := l.current()
	r, err := dial(w.ns)
	if err != nil {
		return s, 0, err
	}
	defer r.Close()
	answers, err := r.execute(unix.RTM_GETQDISC, unix.NLM_F_DUMP, w.tcmsg(), nil)
	if err != nil {
		return s, 0, fmt.Errorf("list queueing disciplines of link %q: %w", w.name, err)
	}
	for _, m := range answers {
		if len(m.Data) < nl.SizeofTcMsg || int(binary.NativeEndian.Uint32(m.Data[4:])) != w.index {
			continue
		}
		s, latency, err = parseShaping(m.Data[nl.SizeofTcMsg:])
		if latency > 0 || err != nil {
			return s, latency, err
		}
	}
	return s, 0, nil
}

func parseShaping(b []byte) (Shaping, time.Duration, error) {
	top, err := attributeMap(b)
	if err != nil || cstring(top[unix.TCA_KIND]) != shapeQdiscKind {
		return Shaping{}, 0, err
	}
	inner, err := attributeMap(top[unix.TCA_OPTIONS])
	if err != nil {
		return Shaping{}, 0, err
	}
	opt := inner[nl.TCA_TBF_PARMS]
	if len(opt) < nl.SizeofTcTbfQopt {
		return Shaping{}, 0, errLength
	}
	rate := float64(binary.NativeEndian.Uint32(opt[tbfRate:]))
	if wide := inner[nl.TCA_TBF_RATE64]; len(wide) == 8 {
		rate = float64(binary.NativeEndian.Uint64(wide))
	}
	buffer := time.Duration(binary.NativeEndian.Uint32(opt[tbfBuffer:])) * schedTick
	limit := float64(binary.NativeEndian.Uint32(opt[tbfLimit:]))
	burst := rate * buffer.Seconds()
	return Shaping{RateBitsPerSec: int64(rate * 8), BurstBytes: int(math.Round(burst))},
		time.Duration((limit - burst) / rate * float64(time.Second)), nil
}

// FDBEntry is a forwarding entry of a vxlan link: the VTEP behind which a MAC
// address is.
type FDBEntry struct {
	MAC MAC        // zero: broadcast, multicast and unknown addresses
	Dst netip.Addr // address of the VTEP
}

// DeleteFDB removes an entry that AddFDB added. A missing entry is an error.
func (l *Link) DeleteFDB(mac MAC, dst netip.Addr) error {
	return l.do(fmt.Sprintf("remove forwarding entry %s → %s from", mac, dst), func(h *netlink.Handle, nl netlink.Link) error {
		return h.NeighDel(fdb(nl, mac, dst))
	})
}

// FDB lists the forwarding entries with a VTEP, added and learnt.
func (l *Link) FDB() ([]FDBEntry, error) {
	var out []FDBEntry
	err := l.do("list forwarding entries of", func(h *netlink.Handle, nl netlink.Link) error {
		all, err := h.NeighList(nl.Attrs().Index, unix.AF_BRIDGE)
		for _, n := range all {
			dst, ok := netip.AddrFromSlice(n.IP)
			if ok && len(n.HardwareAddr) == len(MAC{}) {
				out = append(out, FDBEntry{MAC(n.HardwareAddr), dst.Unmap()})
			}
		}
		return err
	})
	return out, err
}

// Spec reads the link's parameters from the kernel, in the type that the link
// was created with.
func (l *Link) Spec() (Spec, error) {
	if l.spec == nil {
		return nil, fmt.Errorf("link %q was not created by this process: %w", l.Name(), errors.ErrUnsupported)
	}
	var by sockets
	defer by.close()
	return l.specBy(&by, nil)
}
