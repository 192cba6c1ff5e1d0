package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Shaping makes a link slow with a token bucket filter (tc-tbf(8),
// net/sched/sch_tbf.c) on what the link sends.
//
// A packet longer than the burst is cut into its segments if it is a GSO packet,
// and dropped if not. So a burst below 64 KiB makes the kernel's super-packets
// travel as packets of the MTU's size, as on a real wire; a larger one lets
// them pass whole.
type Shaping struct {
	RateBitsPerSec int64         // decimal, counting Ethernet headers but neither preamble nor checksum
	BurstBytes     int           // may pass at once after a pause; 0: what the rate passes in 0.5 ms, at least 16 KiB and a whole packet
	Latency        time.Duration // a packet may wait this long; what would wait longer is dropped; 0: 25 ms
}

const (
	shapeBurst    = 500 * time.Microsecond // a timer that fires this late still loses no rate
	shapeMinBurst = 16 << 10               // bytes; one full packet at MTU 9000, ten at 1500
	shapeLatency  = 25 * time.Millisecond
	etherHeader   = 14        // ETH_HLEN, bytes
	shapeMinQueue = 128 << 10 // bytes; two GSO packets, or TCP would lose at once at low rates
)

// filled is s with the defaults filled in, for packets of at most so many bytes.
func (s Shaping) withDefaults(longest int) Shaping {
	if s.BurstBytes == 0 {
		s.BurstBytes = max(shapeMinBurst, longest, int(float64(s.RateBitsPerSec)/8*shapeBurst.Seconds()))
	}
	if s.Latency == 0 {
		s.Latency = shapeLatency
	}
	return s
}

func (s Shaping) validate() error {
	switch {
	case s.RateBitsPerSec < 8:
		return paramError("tbf", "rate", s.RateBitsPerSec, "8 or more bit/s")
	case s.BurstBytes < 0 || s.BurstBytes > math.MaxInt32:
		return paramError("tbf", "burst", s.BurstBytes, "0 (by the rate), or a whole packet and more, in bytes")
	case s.Latency < 0:
		return paramError("tbf", "latency", s.Latency, "0 for 25ms, or more")
	}
	return nil
}

// struct tc_tbf_qopt and its attributes (include/uapi/linux/pkt_sched.h).
const (
	tcaTBFParms  = 1
	tcaTBFRate64 = 4
	tcaTBFBurst  = 6

	tbfOptions       = 36 // sizeof(struct tc_tbf_qopt)
	tbfRate          = 8  // offset of rate.rate, bytes/s
	tbfLimit         = 24
	tbfBuffer        = 28
	linkEthernet     = 1 // TC_LINKLAYER_ETHERNET
	schedTick        = 64 * time.Nanosecond
	rootQdiscParent  = 0xffffffff // TC_H_ROOT
	ourQdiscHandle   = 0x10000    // "1:"
	sizeofTcmsg      = 20
	tcmsgHandle      = 8
	tcmsgParent      = 12
	shapeQdiscKind   = "tbf"
	shapeNoRateBytes = math.MaxUint32 // in rate.rate: look at TCA_TBF_RATE64
)

// Shape makes what l sends no faster than s says, replacing any queueing
// discipline of the link. Impossible values are a *ParamError.
func Shape(l *Link, s Shaping) error {
	if err := s.validate(); err != nil {
		return err
	}
	mtu, err := l.MTU()
	if err != nil {
		return err
	}
	longest := mtu + etherHeader
	if s = s.withDefaults(longest); s.BurstBytes < longest { // none of that length would ever pass
		return paramError("tbf", "burst", s.BurstBytes, fmt.Sprintf("0 (by the rate), or %d bytes and more: a whole packet", longest))
	}
	rate := uint64(s.RateBitsPerSec) / 8
	limit := max(shapeMinQueue, int(float64(rate)*s.Latency.Seconds())) + s.BurstBytes
	opt := make([]byte, tbfOptions)
	opt[1] = linkEthernet
	binary.NativeEndian.PutUint32(opt[tbfRate:], uint32(min(rate, shapeNoRateBytes)))
	binary.NativeEndian.PutUint32(opt[tbfLimit:], uint32(min(limit, math.MaxUint32)))
	inner := []attribute{
		{Type: tcaTBFParms, Data: opt},
		uint32Attr(tcaTBFBurst, s.BurstBytes),
	}
	if rate >= shapeNoRateBytes {
		inner = append(inner, attribute{Type: tcaTBFRate64, Data: binary.NativeEndian.AppendUint64(nil, rate)})
	}
	options, err := nest(unix.TCA_OPTIONS, inner)
	if err != nil {
		return err
	}
	return l.qdisc(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, stringAttr(unix.TCA_KIND, shapeQdiscKind), options)
}

// Unshape gives l back the kernel's default queueing discipline. A link that
// has no other is left alone.
func Unshape(l *Link) error {
	err := l.qdisc(unix.RTM_DELQDISC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// qdisc sends a request about the link's root queueing discipline.
func (l *Link) qdisc(typ, flags uint16, attrs ...attribute) error {
	w := l.current()
	r, err := dial(w.ns)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := r.execute(typ, flags|unix.NLM_F_ACK, w.tcmsg(), attrs); err != nil {
		return fmt.Errorf("shape link %q: %w", w.name, kernelError(err))
	}
	return nil
}

func (w location) tcmsg() []byte {
	b := make([]byte, sizeofTcmsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(w.index))
	binary.NativeEndian.PutUint32(b[tcmsgHandle:], ourQdiscHandle)
	binary.NativeEndian.PutUint32(b[tcmsgParent:], rootQdiscParent)
	return b
}

// Shaped reads how l is shaped; ok is false when it is not. The burst comes back
// within the kernel's rounding.
func ReadShaping(l *Link) (s Shaping, ok bool, err error) {
	w := l.current()
	r, err := dial(w.ns)
	if err != nil {
		return s, false, err
	}
	defer r.Close()
	answers, err := r.execute(unix.RTM_GETQDISC, unix.NLM_F_DUMP, w.tcmsg(), nil)
	if err != nil {
		return s, false, fmt.Errorf("list queueing disciplines of link %q: %w", w.name, err)
	}
	for _, m := range answers {
		if len(m.Data) < sizeofTcmsg || int(binary.NativeEndian.Uint32(m.Data[4:])) != w.index {
			continue
		}
		s, ok, err = parseShaping(m.Data[sizeofTcmsg:])
		if ok || err != nil {
			return s, ok, err
		}
	}
	return s, false, nil
}

func parseShaping(b []byte) (Shaping, bool, error) {
	top, err := attributeMap(b)
	if err != nil || cstring(top[unix.TCA_KIND]) != shapeQdiscKind {
		return Shaping{}, false, err
	}
	inner, err := attributeMap(top[unix.TCA_OPTIONS])
	if err != nil {
		return Shaping{}, false, err
	}
	opt := inner[tcaTBFParms]
	if len(opt) < tbfOptions {
		return Shaping{}, false, errLength
	}
	rate := float64(binary.NativeEndian.Uint32(opt[tbfRate:]))
	if wide := inner[tcaTBFRate64]; len(wide) == 8 {
		rate = float64(binary.NativeEndian.Uint64(wide))
	}
	buffer := time.Duration(binary.NativeEndian.Uint32(opt[tbfBuffer:])) * schedTick
	limit := float64(binary.NativeEndian.Uint32(opt[tbfLimit:]))
	burst := rate * buffer.Seconds()
	return Shaping{
		RateBitsPerSec: int64(rate * 8),
		BurstBytes:     int(math.Round(burst)),
		Latency:        time.Duration((limit - burst) / rate * float64(time.Second)),
	}, true, nil
}
