package usernet

import (
	"time"

	"cleat/packet"
)

// tcpState says how far a connection has come. Each connection has two
// handshakes: one between us and the guest's kernel, one between the host's
// kernel and the remote peer. The order of the states matters: before
// stateSYNACKSent the guest has heard nothing from us, and from
// stateEstablished on both handshakes are complete.
type tcpState uint8

const (
	stateJudging        tcpState = iota // the guest has sent a SYN; Policy and Hook decide about it
	stateConnecting                     // the host's connect is in progress; the guest waits for a SYN-ACK
	stateConnectExpired                 // the host's connect timed out: no socket, and no answer to the guest
	stateAtGate                         // the host is connected; the guest's SYN is on its way through the Gate
	stateSYNACKSent                     // the host is connected; our SYN-ACK is on its way to the guest
	stateSYNSent                        // inbound: the host has accepted; our SYN is on its way to the guest
	stateEstablished                    // bytes cross the device
	stateSpliced                        // bytes bypass the device: a junction splices two sockets
	stateFinished                       // both sides have closed; the flow only answers a repeated FIN
)

// tcpStateNames are the values of FlowInfo.State.
var tcpStateNames = [...]string{"judging", "connecting", "connecting", "gated", "answered", "calling", "established", "established", "finished"}

// timerKind says what a connection's timer waits for. One timer is enough,
// because a connection never waits for two of these at once.
type timerKind uint8

const (
	timerOff        timerKind = iota
	timerConnect              // the host's connect has not succeeded within Limits.TCPConnect
	timerForget               // the guest's own connect has timed out, too: forget the flow (ignoreFor)
	timerGate                 // the guest's SYN has not come through the Gate (gateTimeout)
	timerHandshake            // the guest has not answered our SYN or SYN-ACK: repeat it (synTimeout)
	timerRetransmit           // the guest has not acknowledged data or a FIN: repeat it (rttEstimator.timeout)
	timerProbe                // the guest's window is still closed: probe it
	timerFinished             // the guest repeats its FIN no more: forget the flow (finishedFor)
)

// Timeouts toward the guest, whose kernel is on the same machine: RFC 6298 with
// the bounds of Linux (TCP_RTO_MIN), and fewer retries.
const (
	minRTO         = 200 * time.Millisecond
	maxRTO         = 30 * time.Second
	maxTimeouts    = 10                     // retransmissions or window probes; from 200 ms, doubled up to maxRTO: 141 s
	synTimeout     = time.Second            // RFC 6298 section 2.1
	maxSYNTimeouts = 6                      // tcp_syn_retries
	ignoreFor      = 3 * time.Minute        // longer than the 127 s that tcp_syn_retries amounts to
	gateTimeout    = 200 * time.Millisecond // the path through the guest's kernel is a few function calls
	finishedFor    = time.Second            // the guest repeats its FIN after 200 and 600 ms
)

// flowTimer is the timer of a connection.
type flowTimer struct {
	timer
	kind timerKind // timerOff: the timer is not set
}

// startTimer makes the timer fire after d, in place of what it waited for before.
func (f *tcpFlow) startTimer(kind timerKind, d time.Duration) {
	f.timer.kind = kind
	f.s.loop.timers.set(&f.timer.timer, f.s.loop.after(d))
}

func (f *tcpFlow) stopTimer() {
	f.timer.kind = timerOff
	f.s.loop.timers.set(&f.timer.timer, 0)
}

// arm starts the timer for what the guest has yet to do: answer a handshake,
// acknowledge data or a FIN, open its window. It stops the timer if there is
// nothing to wait for.
func (f *tcpFlow) arm() {
	switch {
	case f.state == stateSYNACKSent || f.state == stateSYNSent:
		f.startTimer(timerHandshake, f.backoff(synTimeout))
	case f.sndUna != f.sndNxt:
		f.startTimer(timerRetransmit, f.backoff(f.rtt.timeout()))
	case f.readable && f.guestWindow == 0:
		f.startTimer(timerProbe, f.backoff(f.rtt.timeout()))
	default:
		f.stopTimer()
	}
}

// backoff doubles d for each timeout in a row.
func (f *tcpFlow) backoff(d time.Duration) time.Duration { return min(d<<f.timeouts, maxRTO) }

// timeout is called when the timer fires.
func (f *tcpFlow) timeout() {
	kind := f.timer.kind
	f.timer.kind = timerOff
	switch kind {
	case timerConnect:
		if f.insideFD >= 0 {
			f.drop()
		} else {
			f.ignoreGuest()
		}
	case timerForget:
		f.drop()
	case timerGate:
		f.s.group.gate.failure()
		f.takeDevice(reasonGateTimeout)
		f.answerSYN()
	case timerHandshake:
		f.repeatSYN()
	case timerRetransmit, timerProbe:
		if f.timeouts++; f.timeouts > maxTimeouts {
			f.giveUp()
			return
		}
		if kind == timerProbe {
			f.probeWindow()
			return
		}
		f.recovering, f.recoverSeq = true, f.sndNxt
		f.retransmit()
		f.arm()
	case timerFinished:
		f.s.tcp.forget(f)
	}
}

// probeWindow asks the guest whether its window is still closed. It may stay
// closed forever, as long as the guest answers (RFC 9293 section 3.8.6.1).
func (f *tcpFlow) probeWindow() {
	f.sendEmpty(packet.ACK, f.sndUna-1)
	f.windowProbes = min(f.windowProbes+1, 7)
	f.startTimer(timerProbe, min(minRTO<<f.windowProbes, maxRTO))
}

// repeatSYN sends our SYN or SYN-ACK again.
func (f *tcpFlow) repeatSYN() {
	if f.timeouts++; f.timeouts > maxSYNTimeouts {
		f.reset()
		return
	}
	f.s.stats.Retransmits++
	if f.state == stateSYNSent {
		f.sendSYN(packet.SYN)
	} else {
		f.sendSYN(packet.SYN | packet.ACK)
	}
	f.arm()
}

// giveUp resets the connection on both sides.
func (f *tcpFlow) giveUp() {
	f.sendRST()
	f.reset()
}

// rttEstimator estimates the round trip to the guest and back (RFC 6298 section
// 2), from one sample at a time. A round trip takes microseconds, but if the
// guest's processor is overloaded it can take more than minRTO without a loss.
type rttEstimator struct {
	sampleSeq   uint32 // the acknowledgement of this sequence number ends the sample
	sampleStart int64  // on the loop's clock; 0: no sample is being taken
	smoothed    int64  // nanoseconds; 0: no sample was taken yet
	deviation   int64  // mean deviation, nanoseconds
}

// acknowledged ends the sample if ack covers it.
func (r *rttEstimator) acknowledged(ack uint32, now int64) {
	if r.sampleStart == 0 || before(ack, r.sampleSeq) {
		return
	}
	rtt := now - r.sampleStart
	r.sampleStart = 0
	if r.smoothed == 0 {
		r.smoothed, r.deviation = rtt, rtt/2
		return
	}
	r.deviation += (max(rtt-r.smoothed, r.smoothed-rtt) - r.deviation) / 4
	r.smoothed += (rtt - r.smoothed) / 8
}

// timeout returns how long to wait for an acknowledgement.
func (r *rttEstimator) timeout() time.Duration {
	return max(time.Duration(r.smoothed+4*r.deviation), minRTO)
}
