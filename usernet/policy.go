package usernet

import (
	"context"
	"net/netip"

	"cleat/packet"
)

// maxHooks bounds the running hooks, each of which is a goroutine.
const maxHooks = 1024

// judge asks the policy and then the hook about a new outbound flow, and calls done with
// the verdict. If the hook is not asked, judge calls done at once and returns nil. Otherwise
// done is called later, on the loop's thread. The caller calls cancel when the flow ends;
// done is not called after that. Without a policy every flow is refused. Inbound flows are
// judged where they are opened (tcpTable.callGuest, udpSocket.openInbound).
func (s *engine) judge(f Flow, done func(Verdict)) (cancel func()) {
	v := Verdict{Action: Refuse}
	if s.cfg.Policy != nil {
		v = s.cfg.Policy.Judge(f)
	}
	if s.cfg.Hook == nil || v.Action != Allow && v.Action != Redirect {
		s.count(v)
		done(v)
		return nil
	}
	if s.runningHooks >= maxHooks || !s.group.ledger.Charge(hookCost) {
		s.stats.OverLimit++
		done(Verdict{Action: Refuse})
		return nil
	}
	return s.runHook(f, v, done)
}

// runHook runs the hook, whose cost was charged.
func (s *engine) runHook(f Flow, policy Verdict, done func(Verdict)) (cancel func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.runningHooks++
	go func() {
		defer s.group.ledger.Refund(hookCost)
		v := s.cfg.Hook(ctx, f)
		if v == (Verdict{}) {
			v = policy
		}
		answer := func() {
			s.runningHooks--
			if ctx.Err() != nil {
				v.discard()
				return
			}
			s.count(v)
			done(v)
		}
		if !s.loop.post(answer) {
			v.discard()
		}
	}()
	return cancel
}

// discard closes the verdict's Conn.
func (v Verdict) discard() {
	if v.Conn != nil {
		_ = v.Conn.Close()
	}
}

// count counts the verdict if it refuses or drops a flow.
func (s *engine) count(v Verdict) {
	if v.Action == Refuse || v.Action == Drop {
		s.stats.Refused++
	}
}

// destination returns the address that a flow is connected to.
func (v Verdict) destination(f Flow) netip.AddrPort {
	if v.Action == Redirect {
		return v.To
	}
	return f.Destination
}

// unreachable answers a packet from the guest, behind its virtio header, with an ICMP
// error.
func (s *engine) unreachable(frame []byte, why packet.ErrorKind) {
	s.icmp.report(frame, why, 0)
}
