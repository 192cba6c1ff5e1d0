package tunnel

import "fmt"

// Debug is for trying.
func (t *Tunnel) Debug() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	s := fmt.Sprintf("read %d sent %d resent %d drops %d recv %d written %d strange %d senderr %d werr %d missing %d order %+v",
		t.stats.read.Load(), t.stats.sent.Load(), t.stats.resent.Load(), t.stats.queueDrops.Load(), t.stats.received.Load(), t.stats.written.Load(),
		t.stats.strange.Load(), t.stats.sendErrors.Load(), t.stats.writeErrors.Load(), t.stats.missing.Load(), t.in.buf.Stats())
	for _, sp := range t.send.Paths() {
		st := t.send.Status(now, sp.ID)
		s += fmt.Sprintf("\n   %d live=%v rate %.1fM got %.1fM lost %d rtt %v q %v d %v infl %d kept %d", sp.ID, st.Live, st.RateBitsPerSec/1e6, st.BitsPerSec/1e6, st.Lost, st.RTT, st.Queue, st.Delay, st.Inflight, t.paths[sp.ID].kept.len())
	}
	return s
}
