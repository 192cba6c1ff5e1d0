// Package sched decides which path of a tunnel carries the next packets, how fast
// each may go, and which path is dead.
//
// # Theory of operation
//
// Packets wait in one queue for all paths and are bound to a path as late as
// possible: when that path has room. A path has room while the bytes given to it,
// less what its rate has carried since, are less than a few milliseconds' worth.
// Of the paths with room the one that would deliver a full packet first is taken: by its delay
// and by what it has before it. So nothing is configured, and when all paths are
// full each carries what it can. A path that is longer than the shortest is used when
// packets have waited for as long as it takes longer: those behind would not have come
// earlier without it.
//
// A path that loses many more packets than the others and brings little is left alone, and
// probed meanwhile. One that comes when others are known already is probed before it is used, but for
// one that carried well, and went because its link was down.
// What is sent again takes the path that delivers first, surely: others wait for it.
//
// The rate of a path follows from the receiver's reports. A path whose delay is
// above its least has a queue: what it delivers meanwhile is its rate. That rate
// is then aimed a little higher or lower, so that a short queue stands and the
// path never idles. A path without a queue whose pace holds packets back is
// allowed more, up to twice what it has delivered. What it delivers while there is
// little to send says nothing.
//
// The least delay is sought again every few seconds, path by path, by sending nothing
// until the queue has drained: clocks drift, routes change, and a standing queue would
// otherwise pass for the path's own delay.
//
// A path is dead when packets that were sent on others later than its own oldest
// unacknowledged ones have arrived, by more than a threshold: paths are compared
// with each other, and with the queue that stands in them, never with a clock, since a
// starved processor delays all of them. The last path that lives can't die. What a dead path had not delivered is
// sent again on others. Reports that acknowledge packets sent to a dead path bring
// it back.
//
// # Concurrency and clocks
//
// Nothing reads a clock, does I/O or starts goroutines; a Sender belongs to whoever
// has its lock. Times are since an epoch of the caller's, of a clock that never
// jumps.
//
// # Limits
//
// MaxPaths paths. Delays are compared as 32-bit microseconds: they may differ by
// half an hour at most.
//
// Sources: RFC 8985 (RACK) for comparing times of sending; RFC 6817 (LEDBAT) for a
// queue held by one-way delay; RFC 8289 (CoDel) for the queue; the BBR draft for
// delivery rates and application limits.
package sched
