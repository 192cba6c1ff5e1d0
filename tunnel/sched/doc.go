// Package sched decides which path of a tunnel carries the next packets, how fast each path
// is sent to, and which paths are dead.
//
// # Overview
//
// A Sender holds the paths of one direction. The caller keeps one queue of packets for all
// paths and calls
//
//   - [Sender.Pick] (or [Sender.PickResend], [Sender.CopyPaths]) for the packet at its head,
//     which returns a path and how many bytes to send on it now, or no path;
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
//	ledger   ledger.go  sequence numbers, what is in flight, what has arrived
//	delay    delay.go   minimum one-way delay, standing queue, round trips
//	drain    delay.go   pausing the path to measure the delay of the empty path
//	pacer    pacer.go   token bucket: how much may be sent now
//	padding  pacer.go   measuring a new path with padding
//	window   rate.go    what one adjustment of the rate is based on
//	control  rate.go    the rate controller
//	loss     loss.go    share of packets lost
//	health   health.go  up, dead, sidelined
//
// Information flows one way. Report updates the ledger. If the report covers new packets it
// updates delay and, at the end of a window, lets the controller set pacer.rate; then it
// updates loss. Check derives health from ledger, delay and loss. Pick reads health, delay
// and pacer. There are three exceptions: the controller starts drains and writes
// delay.assumedQueue, a drain writes pacer.pausedUntil and clears the backlog, and a path
// that returns from death has its rate halved and its minimum delay forgotten.
//
// # Choosing a path
//
// In mode Adaptive the path with room whose next full packet would arrive first is picked:
//
//	arrival = oneWay + (full packet + backlog) / rate
//
// A path with a longer delay than the shortest is used only when the first packet of the
// queue has waited for the difference of the two delays, less delaySlack: the packets behind
// it then arrive no later than they would by the shortest path. [Sender.Spread] returns
// that difference for the longest path that is worth waiting for.
//
// A packet that is sent again takes the path with the lowest arrival + loss · resendCost,
// because others wait for it. Reports take the best path by the same measure, and one other
// path in turn.
//
// Mode Weighted gives each path bytes by its weight, Flow hashes flows to paths, Duplicate
// sends everything on all paths or on the best two.
//
// # Pacing
//
// A path has room while its backlog, the bytes given to it less what its rate has carried
// since, is less than backlogTime's worth. It is filled in runs of runTime's worth, once half
// a run fits. When packets wait because a path has no room, heldBackAt is set. The controller
// uses it to tell a path that is limited by its rate from one that has nothing to send.
//
// # Delays and drains
//
// A report carries the minimum difference between arrival and sending time. The minimum of these
// over 5 to 10 s (windowedMin) is the delay of the empty path; what a report has beyond it is
// the queue standing in the path. Clocks drift, routes change, and a queue that never empties
// would pass for delay. So each saturated path is drained every drainEvery, and when a queue
// stays too long: nothing is sent for the queue's length and drainMargin, and the first
// packet after the pause sets the minimum delay. A result that differs from the minimum delay by
// more than sameDelayMicros is doubted and the pause is repeated with twice the length, up to
// maxDrainRetries times. The first drains of paths are spread over drainEvery.
//
// # Rate control
//
// Delay, not loss, controls the rate: radio links lose packets without being full. Every
// minWindow of reports the controller compares the rate at which packets were delivered with
// the rate at which the same packets had been sent. Packets wait for the path if heldBackAt
// is recent; the path is limited by its rate if it was sent more than 80 % of it. The states:
//
//   - Full: the path is limited by its rate and a queue beyond queueNoise stood for the whole
//     window; or a queue beyond longQueue did and the path delivered more than half its rate.
//     The path is saturated from now on, and capacity is its smoothed delivery rate. The rate
//     becomes capacity · (1 + (target − queue) / settling time), with a factor of 0.5 to 1.1.
//     The settling time is at least three feedback delays, so that old reports don't cause
//     oscillation. A queue that stays too long for four feedback delays starts a drain.
//   - Idle: no packets wait. What is delivered says nothing about the path. The rate is
//     limited to steadyGrowth times the highest that was ever delivered, and returns to
//     capacity once the queue has drained.
//   - Plateau: packets wait and, for four feedback delays and ten windows, 1.15 times as much
//     was sent as was delivered, without a queue. What looks like the minimum delay is a queue.
//     The path is saturated at its delivery rate, and a drain starts.
//   - Growing: saturated, packets wait, limited by the rate, no queue. In each window the rate
//     grows by the factor 1 + (g − 1) / 2, up to g times the peak delivery rate; g begins at
//     steadyGrowth and rises by 0.1 with each feedback delay, up to startGrowth.
//   - Guessing: the same, but the path was never saturated. In each window the rate grows by
//     startGrowth, up to startGrowth times the peak delivery rate.
//
// A new path may be measured with padding (PaddingRoom) for paddingTime and eight round trips,
// and up to MaxPaddingBytes, before data needs it. A metered path is measured by data only, and
// is not sidelined for not having been probed. Windows that contain a drain, and pauses in sending, don't count.
//
// # Losses and sidelined paths
//
// A path that loses minExcessLoss more than the others and delivers little in comparison
// (worthFactor) is sidelined: it gets probes and copies only. So are a path that has never
// delivered anything while others have, and a new path whose losses are unknown while those
// of another path were known before it came. Losses are known after lossSamplePackets, and
// after up to 8 times as many if the path keeps dying and returning. Losses do not count
// while a long queue stands (it overflows), while the path is dead, or right after padding.
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
// CoDel (RFC 8289) decides which packets of the caller's queue to drop or mark.
//
// # Timers and constants
//
// No timer runs in this package. These times are checked when the caller calls:
//
//	forgetAfter          2s        + 4 RTT: a run without acknowledgement is forgotten
//	deathThreshold       30ms      measured: a healthy path lags 10 ms with both processors busy
//	ackOverdueAfter      12ms      + RTT: all paths are probed
//	firstPatience        250ms     a run takes 0.2 s at 0.5 Mbit/s while the rate is a guess
//	patienceHalfLife     10s
//	minExtraPatience     20ms
//	maxExtraPatience     400ms
//	steadyTime           10s       a path that returns sooner after its last return is unsteady
//	lossSettleTime       100ms     or 3 RTT: losses after padding do not count
//	paddingTime          200ms     + 8 RTT
//	drainEvery           2.5s
//	maxPause             100ms
//	minimumAge           10s
//	peakAge              200ms     or 2 feedback delays
//	minWindow            5ms
//	settleTime           25ms      or 3 feedback delays, or 4 target queues
//
// A feedback delay is a round trip and two windows. Lengths of queues and runs:
//
//	targetQueue          800µs     or 1.5 full packets
//	busyQueue            300µs     or a full packet
//	longQueue            4ms
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
//	steadyGrowth         1.1       factor
//	minExcessLoss        0.05      share of packets
//	worthFactor          4         factor
//	lossSamplePackets    100       packets: 1 path in 600 with 15 % loss passes for good
//	lossMemoryPackets    300       packets
//	trustPackets         400       packets: twice what probes deliver
//	maxQuickReturns      3         doublings
//	proofsNeeded         3         reports
//	returnProbes         100       packets
//	maxDrainRetries      3         pauses
//	sameDelayMicros      700       µs
//	resendCost           1e+06     µs for each packet lost: TCP halves its window
//	minRunBytes          12288     bytes
//	maxStrayBytes        16777216  bytes: the peer's socket buffer
//	reportShare          8         1/8 of a path's rate
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
// hour at most.
//
// Sources: RFC 8985 (RACK) for comparing times of sending, RFC 6817 (LEDBAT) for a queue
// controlled by one-way delay, RFC 8289 (CoDel) for the queue, and the BBR draft
// (draft-ietf-ccwg-bbr) for delivery rates and application limits.
package sched
