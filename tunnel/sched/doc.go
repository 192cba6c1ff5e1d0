// Package sched decides which path of a tunnel carries the next packets, how fast each path
// is sent to, and which paths are dead.
//
// # Overview
//
// A Sender holds the paths of one direction. The caller keeps the packets for all paths in
// queues, one for bulk flows and one for sparse flows, and calls
//
//   - [Sender.Pick] (or [Sender.PickResend], [Sender.CopyPaths]) for the packet at the head of
//     a queue, which returns a path and how many bytes to send on it now, or no path;
//   - [Path.Sent] after each run, a group of packets that goes to one path at once;
//   - [Sender.RoomAt] to learn when to try again;
//   - [Path.Report] for each report of the receiver, and [Path.AddRTT] for each measured
//     round trip;
//   - [Sender.Check] every few milliseconds, which finds paths that died or returned.
//
// Packets are bound to a path as late as possible, so nothing has to be configured, and when
// all paths are full each of them carries what it can.
//
// # State of a path
//
// The fields of a Path are grouped, and each group has its own part of the package:
//
//	ledger     ledger.go     sequence numbers, what is in flight, what has arrived
//	delay      delay.go      minimum one-way delay, standing queue, round trips
//	drain      delay.go      pausing the path to measure the delay of the empty path; jointdrain.go:
//	                         pausing all that have a queue
//	pacer      pacer.go      token bucket: how much may be sent now
//	padding    pacer.go      measuring a new path with padding
//	window     rate.go       what one adjustment of the rate is based on
//	control    rate.go       the rate controller; savings.go, overload.go: what it must not be
//	                         misled by; ecn.go: congestion marks
//	contention contention.go others' queue, and a share beside it; cubic.go: the window for that
//	loss       loss.go       share of packets lost
//	breaker    breaker.go    circuit breaker: the rate's limit after persistent heavy losses
//	health     health.go     up, dead, sidelined
//
// Information flows one way. Report updates the ledger. If the report covers new packets it
// updates delay and, at the end of a window, lets the controller set pacer.rate; then it updates
// loss. Check derives health from ledger, delay and loss. Pick reads health, delay and pacer.
// There are exceptions: Check starts joint drains, ends contention and sets the rates of paths
// that follow another one; the controller starts drains and, where bursts or a rate that was too
// high caused losses, writes pacer.maxBurst and loss.ratio; a drain sets pacer.rate and
// pausedUntil and clears the backlog; and a path that returns from death has its rate halved and
// its minimum delay forgotten.
//
// # Choosing a path
//
// In mode Adaptive a packet of a sparse flow takes the path with room whose next full packet
// would arrive first:
//
//	arrival = oneWay + (full packet + backlog) / rate + queue in the path
//
// A bulk flow ([Sender.FlowPaths]) has an anchor: the longest of the paths with which a
// connection carries the most in its first 30 s ([Sender.Anchored]). All its packets are
// delivered as late as if the anchor had taken them, whatever the flow's rate, so its sender
// sees constant round trips. Otherwise slow start would end when the flow spills over to longer
// paths, and BBR, whose window is in proportion to the shortest round trip, would never use
// them. One packet that comes early is enough to spoil the shortest round trip. So a packet
// takes the anchor, or another path that is as long, unless
//
//   - it follows another packet of the flow so closely that the receiver, which keeps the
//     order, delivers it after that: then it takes the path that delivers first; or
//   - it has waited for the difference of the two delays.
//
// A path over which round trips differ by more than HyStart tolerates is no anchor, because a
// connection that starts slowly on it would stop growing at once. Neither is a path that follows
// another in a bottleneck with others' packets.
//
// A path with a longer delay than the shortest, or than a bulk flow's own, is used only when
// the first packet of the queue has waited for the difference of the two delays, less
// delaySlack: the packets behind it then arrive no later than they would otherwise.
// [Sender.Spread] returns that difference for the longest path that is worth waiting for.
//
// A packet that is sent again takes the path with the lowest arrival + loss · resendCost,
// because others wait for it; or one with room by which it arrives before the last of those
// that wait would arrive by that path. Reports take the best path by the same measure, and one
// other path in turn.
//
// Mode Weighted gives each path bytes by its weight, Flow hashes flows to paths, Duplicate
// sends everything on all paths or on the best two.
//
// # Reports
//
// Reports about the other direction have no path sequence numbers. On a slow path, one of which
// reports each reportPeriod would take more than one part in reportShare, they take no more than
// that, and are charged to the pacer. A report goes by the path that delivers it first, counting
// the time until the path's share allows it; until then it waits ([Sender.ReportAt]). Second
// copies leave a slow path half of its share, and take at most one part in copyShare of any. So
// slow paths of equal length carry reports in turn. No report waits for more than
// MaxReportInterval, whatever the share.
//
// The peer does the same, and announces how often it reports ([Sender.SetReportInterval]). Of
// what is done here, only this depends on how often that is: feedback delays grow by it, and
// acknowledgements count as overdue later. Windows end with a report, so they grow by
// themselves. Deaths are found by comparing what the same report says about two paths, so a
// longer interval delays them, but causes no false alarm.
//
// # Pacing
//
// A path has room while its backlog, the bytes given to it less what its rate has carried
// since, is less than backlogTime's worth. It is filled in runs of runTime's worth, once half
// a run fits. When packets wait because a path has no room, heldBackAt is set; a packet of a
// sparse flow sets it only if no packets of bulk flows wait ([Sender.BulkWaits]). The controller
// uses it to tell a path that is limited by its rate from one that has nothing to send. A run is
// sent as messages that are no longer than what the path has been seen to deliver in minRunTime
// ([Path.MaxMessageBytes]), because its rate may be a guess.
//
// # Delays and drains
//
// A report carries the minimum difference between arrival and sending time. The minimum of these
// over 5 to 10 s (windowedMin) is the delay of the empty path; what a report has beyond it is
// the queue standing in the path. Clocks drift, routes change, and a queue that never empties
// would pass for delay. So each saturated path is drained every drainEvery, and when a queue
// stays too long: nothing is sent for the queue's length and drainMargin, and the packets of
// the next window set the minimum delay. A result that differs from the minimum delay by more
// than sameDelayMicros, or twice the path's jitter, is doubted and the pause is repeated with
// twice the length, up to maxDrainRetries times. The first drains of paths are spread over
// drainEvery.
//
// # Others in a path
//
// A path that is steered by its queue yields to a stream of others that fills the queue, until next
// to nothing is left. So it has to tell others' packets from its own:
//
//   - A queue that stays, or one that a drain has not emptied, calls for a joint drain: all paths
//     in which a queue stays are sent nothing until what they had queued must have left. So paths
//     with a common bottleneck don't take each other for others.
//   - The first packet after the pause shows what still stands. That is others' if nothing of the
//     path had arrived for as long as that takes to drain. Otherwise the pause was too short.
//
// Such a path is contended: it takes the share of one connection, by a window that grows and
// shrinks as CUBIC's does (RFC 9438), with HyStart (RFC 9406). Marks count as losses. The rate is
// the window divided by the round trip, and others' queue counts as part of the path's delay.
//
//   - Coupling. Paths behind one bottleneck have the same queue at the same time. The shortest of
//     them is the leader, and its window is for all. The others, which would gain nothing, are
//     sent followerShare of its rate, which shows their queues. A path whose queue differs for
//     apartTime has a bottleneck of its own.
//   - Only where it matters. If the paths without others' queues carry more than the path ever
//     did, it goes on yielding: filling a queue makes everything slower.
//   - The end. Joint drains every minTestEvery to maxTestEvery show whether others are still
//     there. If maxEmptyTests have shown no queue, they are not. If maxSameTests have shown the same
//     delay, as far as clocks drift, the path has become longer.
//
// # Rate control: theory
//
// A link has a rate, and in front of it a bucket of tokens and a queue. While a queue stands,
// the bucket is empty and packets leave at exactly the link's rate, whatever was sent. So a
// path that keeps a short queue is measured all the time, and carries all it can. The
// controller keeps such a queue (targetQueue) and measures only then.
//
//   - Savings. What a path was sent less than its capacity, in a pause or a drain, its bucket
//     has saved. Until that is spent, it delivers more than its rate without a queue. That
//     looks as if its rate had risen. So the controller keeps an account (savings), as large as
//     buckets of shapers are, and concludes nothing while there are savings.
//   - Prediction. A report is a round trip old. The queue that a packet sent now will meet is
//     the queue that the last acknowledged packet met, and what has been sent since beyond the
//     capacity: inFlight/capacity − time since that packet was sent. The controller steers this
//     queue, so its gain need not fall with the round trip.
//   - Noise. Radio links let packets through in turns of some milliseconds. The median change
//     between the minimum delays of windows is what a queue must exceed to be seen, and the
//     queue to keep is longer by that; windows are longer where reports differ more.
//   - Losses. A policer has no queue. When a path that is sent all its rate loses more than
//     usual, its rate is lowered to what it delivers, its bursts to the shortest, and the losses
//     are compared: if they stop, that is its capacity; if they become fewer, it is sent less
//     again; if not, they are usual (overload). If a path that is sent less loses more than usual,
//     it can't take the bursts, and they are halved. If that doesn't help, the rate may be too
//     high, although there is not enough to send for it all the time, and losses are compared.
//     Losses of packets that turn out to have been too big for the path are forgotten, with what
//     they have led to ([Path.PacketsShrunk]).
//   - Policers. Once losses have stopped when less was sent, the path has a policer until it has a
//     queue. What exceeds a policer's rate is lost until that shows, so the path stays at that rate
//     for lossHold or lossHoldRounds feedback delays before it grows, grows slowly at first, and
//     spends little. It takes 18 feedback delays of growth to find out that its rate has risen
//     tenfold.
//   - Marks. A router may mark packets whose queue is longer than the router wants (ECN), which
//     may be shorter than the queue that measures the rate. See below.
//
// So the controller listens to delay, to losses and to congestion marks.
//
// # Congestion marks
//
// Report.Marked counts the packets that a router on the path has marked. The controller responds
// to a mark, and again only when a packet that was sent after the last response is marked. A
// response does not multiply the rate by 0.5 or 0.8 (RFC 3168, RFC 8511): the length of the queue
// is known, and the path loses no more than it takes to drain that.
//
//   - Pressure grows with the share of marked packets (as in DCTCP, RFC 8257), and at least by
//     minMarkGain, because CoDel marks few. It falls to 0 in markRecovery. The higher it is, the
//     shorter is the queue that a full path keeps, down to the shortest that can be measured, and
//     the slower the rate grows.
//   - Hold. If the shortest queue that can be measured is still too long, no target makes the
//     marks stop. So the path is held after each response: it is sent heldShare of its capacity,
//     and has no queue. It is held for up to minHold or holdRounds feedback delays, in proportion
//     to the pressure. Then the queue returns, which measures the rate again, until the next mark.
//   - Marks without a queue. If packets are marked although the path is held and no queue stands,
//     the router wants a part of the capacity to stay free (a virtual queue), and the capacity
//     counts as less, down to minMarkedRate of what was measured: a router or an attacker that
//     marks everything halves a path, but does not stop it.
//
// Marks right after a drain don't count: a burst follows the pause. No packet is ever marked if
// the senders of inner packets don't support ECN, and then nothing of this has an effect.
//
// # Rate control: states
//
// Every minWindow of reports, or longer, the controller compares the rate at which packets were
// delivered with the rate at which the same packets had been sent. Packets wait for the path if
// heldBackAt is recent; the path is limited by its rate if it was sent more than 80 % of it.
// The states:
//
//   - Full: the path is limited by its rate and a queue beyond the noise stood for the whole
//     window, or a queue beyond longQueue did, since before the window, and more than half of the
//     rate was delivered, or packets wait and less than 80 % of what was sent was delivered. A
//     longer route looks like a queue, but delivers what it is sent. Capacity is the smoothed
//     delivery rate. The rate becomes capacity · (1 + (target − predicted queue) / settling time),
//     with a factor of 0.1 to 1.1. A queue that stays too long for four feedback delays starts a
//     drain.
//   - Comparing: see Losses. The rate stays.
//   - Held: see Congestion marks. The rate is heldShare of the capacity. There are no drains.
//   - Idle: no packets wait. What is delivered says nothing about the path. The rate is the
//     capacity, or a guess of at most startGrowth times the highest that was ever delivered.
//   - Spending: saturated, packets wait, and there are savings. The rate is the capacity and
//     spendGrowth, or as much as makes a queue of 5 ms until it shows; with a policer,
//     policedSpendGrowth. On a slow path reports take as much, so its savings count as spent
//     after spendPatience.
//   - Growing: saturated, packets wait, limited by the rate, no queue, no savings. The growth
//     begins as above and doubles with each feedback delay, up to maxGrowth; where growth has
//     caused losses before, it is gentleGrowth for each feedback delay. The rate exceeds a
//     policer's by gentleGrowth, and by twice as much after each two feedback delays.
//   - Guessing: the same, but the path was never saturated. In each window the rate grows by
//     startGrowth, up to startGrowth times the peak delivery rate. The first queue beyond
//     longQueue saturates the path and is drained; so does the first comparison of losses. Lost
//     bursts halve the rate for two feedback delays.
//
// A new path may be measured with padding (PaddingRoom) for paddingTime and eight round trips,
// and up to MaxPaddingBytes, before data needs it. A metered path is measured by data only, and
// is not sidelined for not having been probed. Windows that contain a drain, and pauses in
// sending, don't count.
//
// # Losses and sidelined paths
//
// A path that loses minExcessLoss more than the others and delivers little in comparison
// (worthFactor) is sidelined: it gets probes and copies only. So are a path that has never
// delivered anything while others have, and a new path whose losses are unknown while those
// of another path were known before it came. Losses are known after lossSamplePackets, and
// after up to 8 times as many if the path keeps dying and returning. Losses do not count
// while a long queue stands (it overflows), while the path is dead or contended, or of padding and
// right after.
//
// # Circuit breaker
//
// A path that keeps losing heavyLoss or more has its rate halved after each interval
// (breakerInterval, or breakerDelays feedback delays), and after tripIntervals of them its circuit
// breaker trips (RFC 8084): its rate is minRate, and what it loses is not sent again
// ([Sender.RepairStopped]). If all paths that could carry it have tripped, nothing is. The breaker
// closes when an interval has less than half of heavyLoss, and the rate rises by recoverGrowth
// with each interval, as far as the controller asks for it. Losses of a sidelined path do not
// count, nor what is lost while nothing arrives for outageTime: that is an interruption.
//
// A path on which nothing arrives at all does not trip its breaker, because nothing is reported.
// What it is sent is bounded by what may be in flight (Sender.MaxInFlightBytes, forgetAfter).
//
// # Death and return
//
//	down → dead   SetUp(true); straight to live if the Sender is Blind
//	dead → live   proofsNeeded reports or a false alarm, found by Check; Revive
//	live → dead   inferred by Check; Kill; Withdraw
//	any  → down   SetUp(false)
//
// A path that was just added is live.
//
// Check infers a death by comparison: another live path has delivered packets that were sent
// deathThreshold later than this path's oldest unacknowledged run, plus the difference of
// their delays and the queue in this path, and the receiver has looked for packets of this
// path since. Paths are never compared with a clock, because a starved processor delays all
// of them. The last live path can't die. What was in flight on a dead path is forgotten here;
// the caller sends it again.
//
// A dead path returns when proofsNeeded reports cover new packets, which are the caller's
// probes. If a packet arrives that was sent before the death, it was a false alarm: the path
// returns at once and its threshold grows by extraPatience, which halves every
// patienceHalfLife. A path whose death was announced by the link, the peer or the kernel,
// and which had delivered trustPackets with little loss, returns without being sidelined.
//
// # Queue
//
// CoDel (RFC 8289) decides which packets of a queue to drop or mark. The caller has one CoDel
// for each of its queues.
//
// # Timers and constants
//
// No timer runs in this package. These times are checked when the caller calls:
//
//	forgetAfter          2s        + 4 RTT: a run without acknowledgement is forgotten
//	deathThreshold       30ms      measured: a healthy path lags 10 ms with both processors busy
//	ackOverdueAfter      12ms      + RTT, and more if the peer reports less often than each 10 ms: all paths are probed
//	firstPatience        250ms     a run takes 0.2 s at 0.5 Mbit/s while the rate is a guess
//	patienceHalfLife     10s
//	minExtraPatience     20ms
//	maxExtraPatience     400ms
//	steadyTime           10s       a path that returns sooner after its last return is unsteady
//	lossSettleTime       100ms     or 3 RTT: losses after padding was reported do not count
//	paddingTime          200ms     + 8 RTT
//	drainEvery           2.5s
//	maxPause             1s
//	minimumAge           10s
//	peakAge              200ms     or 2 feedback delays
//	minWindow            5ms
//	maxWindow            200ms
//	settleTime           25ms      or 2 windows, or 4 target queues
//	reportPeriod         10ms      of the caller's reports
//	MaxReportInterval    100ms     a report waits for a path's share no longer
//	breakerInterval      1s        or breakerDelays feedback delays
//	outageTime           100ms     + two reports; losses meanwhile do not count
//	maxSavingsTime       250ms
//	maxPolicedSavingsTime 50ms     on a policed path
//	lossHold             500ms     or lossHoldRounds feedback delays
//	anchorHorizon        30s       in which a connection should carry much
//	maxEarly             1ms       or 1/earlyShare of the anchor's round trip
//	markRecovery         20s
//	minHold              4s        at full pressure; or 32 feedback delays
//	maxHold              10s
//	jointDrainEvery      1s        between two joint drains, at least
//	minTestEvery         5s        joint drains of a contended path, at first
//	maxTestEvery         20s       later
//	freeTime             2s        without a queue: others keep none
//	bestRateAge          30s
//	levelTime            200ms     others' queue is smoothed over this
//	apartTime            1s
//
// A feedback delay is a round trip, a window and two times minWindow, or what the peer takes
// from one report to the next. Lengths of queues and runs:
//
//	targetQueue          1.5ms     or 1.5 full packets
//	busyQueue            500µs     or a full packet
//	longQueue            4ms
//	maxTarget            20ms
//	runTime              1ms       measured: with 0.25 ms, 68–85 % of 12 × 100 Mbit/s
//	minRunTime           300µs     measured with shapers that have a burst of 0.5 ms
//	backlogTime          2ms       a run included
//	lateCredit           2ms       lateness of a wake-up
//
// Numbers without a unit of time:
//
//	startRate            1.25e+06  bytes/s (10 Mbit/s)
//	minRate              8000      bytes/s (64 kbit/s)
//	maxPaddingRate       1.25e+08  bytes/s (1 Gbit/s)
//	MaxPaddingBytes      1e+06     bytes
//	startGrowth          2         factor
//	spendGrowth          0.1      above the capacity
//	policedSpendGrowth   0.05      the same, at most, on a policed path
//	spendPatience        2s        until what a slow policed path has saved counts as spent
//	gentleGrowth         0.02     the same, for each feedback delay
//	maxGrowth            1.5      factor
//	minAnchorGain        1.03      of what a connection carries, for a longer anchor
//	minAnchorShare       0.02      of the rates of the paths that a flow fills first
//	earlyShare           8         of the round trip, one in
//	noiseSpread          8         median differences of the delay
//	jointMargin          1.25      of the queue that is known
//	queueRounds          4         feedback delays
//	followerShare        0.02      of the leader's rate
//	maxEmptyTests        2         joint drains
//	maxSameTests         3         joint drains
//	maxDrift             0.0006    of two clocks
//	cubicC               0.4       packets/s³
//	cubicBeta            0.7       factor
//	maxSavings           262144    bytes
//	excessLoss           0.015     share of packets beyond the usual
//	compareLost          8         packets
//	lossHoldRounds       16        feedback delays
//	fullShare            0.7       share of a path's rate
//	backOff              0.97      factor
//	heldShare            0.98      share of the capacity
//	holdRounds           32        feedback delays
//	carefulGrowth        0.005     above the capacity, for each feedback delay, at full pressure
//	markGain             0.5       of the share of marked packets
//	minMarkGain          0.1       pressure
//	patientResponses     3         responses
//	minMarkedRate        0.5       share of the measured capacity
//	burstLoss            0.2       share of packets
//	minExcessLoss        0.05      share of packets
//	worthFactor          4         factor
//	lossSamplePackets    100       packets: 1 path in 600 with 15 % loss passes for good
//	lossMemoryPackets    300       packets
//	trustPackets         400       packets: twice what probes deliver
//	maxQuickReturns      3         doublings
//	heavyLoss            0.34      share of packets: beyond 1/3, resendBudget does not suffice
//	tripIntervals        3         intervals
//	breakerDelays        5         feedback delays
//	breakerPackets       100       packets
//	closePackets         20        packets
//	recoverGrowth        4         factor
//	proofsNeeded         3         reports
//	returnProbes         100       packets
//	maxDrainRetries      3         pauses
//	sameDelayMicros      700       µs
//	resendCost           1e+06     µs for each packet lost: TCP halves its window
//	minRunBytes          12288     bytes
//	maxStrayBytes        16777216  bytes: the peer's socket buffer
//	reportShare          20        1/20 of a slow path's rate
//	copyShare            8         1/8 of a path's rate
//
// doc/results/tunnel.md has the measurements, and what else was tried.
//
// # Concurrency and clocks
//
// Nothing here reads a clock, does I/O, allocates per packet or starts goroutines. A Sender
// is not safe for concurrent use; the caller holds its lock. Times are counted from an epoch
// of the caller's choice, on a clock that never jumps.
//
// # Limits
//
// MaxPaths paths. Delays are compared as 32-bit microseconds, so they may differ by half an
// hour at most. A path yields to others who use all that it leaves, but keep no queue without it.
//
// Sources: RFC 8985 (RACK) for comparing times of sending, RFC 6817 (LEDBAT) for a queue
// controlled by one-way delay, RFC 8289 (CoDel) for the queue, the BBR draft
// (draft-ietf-ccwg-bbr) for delivery rates and application limits, RFC 8084 for the circuit
// breaker, RFC 9438 (CUBIC) and RFC 9406 (HyStart) for a share beside others, and RFC 3168, RFC
// 8257, RFC 8511 and RFC 9332 for congestion marks.
package sched
