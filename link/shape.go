package link

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Shaping limits the rate at which a link sends, with a token bucket filter
// (tc-tbf(8), net/sched/sch_tbf.c, CONFIG_NET_SCH_TBF).
//
// TBF splits a GSO packet that is longer than the burst into its segments, and
// drops any other packet that is longer. A burst below 64 KiB therefore turns the
// kernel's super-packets into packets of the MTU's size, as on a real wire. A
// larger burst lets them pass whole.
type Shaping struct {
	RateBitsPerSec int64 // decimal, 8 or more; counts Ethernet headers but not preamble and checksum
	BurstBytes     int   // bytes that may pass at once after a pause; 0: what the rate passes in 0.5 ms, at least 16 KiB and a whole packet
}

const (
	shapeBurst    = 500 * time.Microsecond // a timer that fires this late loses no throughput
	shapeMinBurst = 16 << 10               // bytes; one full packet at MTU 9000, ten at 1500
	shapeLatency  = 25 * time.Millisecond  // packets that would wait longer are dropped
	etherHeader   = 14                     // ETH_HLEN, bytes
	shapeMinQueue = 128 << 10              // bytes; two GSO packets, or TCP would lose packets at once at low rates
)

func (s Shaping) validate() error {
	switch {
	case s.RateBitsPerSec < 8:
		return paramError("tbf", "rate", s.RateBitsPerSec, "8 or more bit/s")
	case s.BurstBytes < 0 || s.BurstBytes > math.MaxInt32:
		return paramError("tbf", "burst", s.BurstBytes, "0 (by the rate), or a whole packet or more, in bytes")
	}
	return nil
}

// struct tc_tbf_qopt, struct tcmsg and constants of
// include/uapi/linux/pkt_sched.h.
const (
	tbfRate          = 8          // offset of rate.rate, bytes/s
	tbfLimit         = 24         // offset of limit, bytes
	linkEthernet     = 1          // TC_LINKLAYER_ETHERNET
	rootQdiscParent  = 0xffffffff // TC_H_ROOT
	ourQdiscHandle   = 0x10000    // "1:"
	tcmsgHandle      = 8
	tcmsgParent      = 12
	shapeQdiscKind   = "tbf"
	shapeNoRateBytes = math.MaxUint32 // rate.rate: use TCA_TBF_RATE64
)

// Shape limits the rate at which l sends. It replaces the link's queueing
// discipline. Invalid values are a *ParamError.
func Shape(l *Link, s Shaping) error {
	if err := s.validate(); err != nil {
		return err
	}
	mtu, err := l.MTU()
	if err != nil {
		return err
	}
	longest := mtu + etherHeader
	s.BurstBytes = cmp.Or(s.BurstBytes, max(shapeMinBurst, longest, int(float64(s.RateBitsPerSec)/8*shapeBurst.Seconds())))
	if s.BurstBytes < longest { // TBF would drop every full packet
		return paramError("tbf", "burst", s.BurstBytes, fmt.Sprintf("0 (by the rate), or %d bytes and more: a whole packet", longest))
	}
	rate := uint64(s.RateBitsPerSec) / 8
	limit := max(shapeMinQueue, int(float64(rate)*shapeLatency.Seconds())) + s.BurstBytes
	opt := make([]byte, nl.SizeofTcTbfQopt)
	opt[1] = linkEthernet
	binary.NativeEndian.PutUint32(opt[tbfRate:], uint32(min(rate, shapeNoRateBytes)))
	binary.NativeEndian.PutUint32(opt[tbfLimit:], uint32(min(limit, math.MaxUint32)))
	inner := []attribute{
		{Type: nl.TCA_TBF_PARMS, Data: opt},
		uint32Attr(nl.TCA_TBF_BURST, s.BurstBytes),
	}
	if rate >= shapeNoRateBytes {
		inner = append(inner, attribute{Type: nl.TCA_TBF_RATE64, Data: binary.NativeEndian.AppendUint64(nil, rate)})
	}
	options, err := nest(unix.TCA_OPTIONS, inner)
	if err != nil {
		return err
	}
	w := l.current()
	r, err := dial(w.ns)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := r.execute(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK, w.tcmsg(),
		[]attribute{stringAttr(unix.TCA_KIND, shapeQdiscKind), options}); err != nil {
		return fmt.Errorf("shape link %q: %w", w.name, kernelError(err))
	}
	return nil
}

// tcmsg is struct tcmsg for the link's root queueing discipline.
func (w location) tcmsg() []byte {
	b := make([]byte, nl.SizeofTcMsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(w.index))
	binary.NativeEndian.PutUint32(b[tcmsgHandle:], ourQdiscHandle)
	binary.NativeEndian.PutUint32(b[tcmsgParent:], rootQdiscParent)
	return b
}
