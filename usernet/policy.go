package usernet

import (
	"context"
	"net/netip"

	"cleat/packet"
)

// AllowAll lets every flow through: to the host's loopback too.
type AllowAll struct{}

// Judge implements Policy.
func (AllowAll) Judge(Flow) Verdict { return Verdict{} }

// maxHooks bounds the hooks that are under way, each of which is a goroutine.
const maxHooks = 1024

// judge asks the policy and the hook about a new flow and calls done with what
// they say: at once where there is no hook, and then cancel is nil; else later
// on the loop's thread. The caller cancels when the flow ends; if that is before
// done was called, it never is. Without a policy every flow is refused.
func (s *engine) judge(f Flow, done func(Verdict)) (cancel func()) {
	v := Verdict{Action: Refuse}
	if s.cfg.Policy != nil {
		v = s.cfg.Policy.Judge(f)
	}
	if s.cfg.Hook == nil || f.Inbound || v.Action != Allow && v.Action != Redirect {
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

// ask runs the hook, which was charged for.
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

// discard closes what a verdict came with.
func (v Verdict) discard() {
	if v.Conn != nil {
		_ = v.Conn.Close()
	}
}

func (s *engine) count(v Verdict) {
	if v.Action == Refuse || v.Action == Drop {
		s.stats.Refused++
	}
}

// target is where a flow goes by its verdict.
func (v Verdict) destination(f Flow) netip.AddrPort {
	if v.Action == Redirect {
		return v.To
	}
	return f.Destination
}

// unreachable answers a packet of the guest's, with its virtio header, by an ICMP
// error.
func (s *engine) unreachable(frame []byte, why packet.ErrorKind) {
	s.icmp.report(frame, why, 0)
}
