// Package bench runs an experiment: it schedules, wires, measures, and keeps
// every sample.
//
// # Terms
//
//   - An experiment says what to measure (package experiment).
//   - A cell is one combination of factor levels (cell.Cell).
//   - A job is one cell and one kind of work (experiment.Job).
//   - A spec describes the network that a cell needs; cells with equal specs share
//     one network (wiring.Spec, wiring.SpecOf).
//   - A network is what a spec describes, built in the lab (wiring.Network).
//   - A testbed is a network with a server at the far end of each pair.
//   - A sample is the result of one measurement of a job (cell.Sample).
//
// # Theory of operation
//
// An experiment is a list of jobs. A schedule puts them into randomised
// complete blocks. For each job the bench takes the testbed it needs, building
// it at first use and keeping it while there is room, starts a server on each
// pair's far end, probes the path MTU once, and runs one client process a pair,
// all of which begin at the same instant. Clients and servers are copies of
// this program started by command line, pinned to processors as the job's
// placement says; the bench itself sleeps while they work. Around the instant
// of work it reads the machine's processor time.
//
// A sample that was disturbed, by foreign load, by the hypervisor, or because
// the generator was late, is kept, marked bad and taken again, at most twice and
// not in the warm-up; at most one measurement in eight is, so that the
// experiment ends on a machine that is never quiet, too. A cell with bad samples
// only is shown with a warning.
//
// A network that learns from its traffic what its links are like begins each
// measurement anew, with new links and programs; its path MTU is probed once, in
// the warm-up. What is to happen to its links (one dies, or flaps) happens while
// the clients work, counted from the instant at which they begin. Such samples also
// say how they compare with what the links have room for (package multipath): of
// the whole, of the first two seconds, and of the rest, or of what comes after
// Work.Steady where two seconds are too few.
//
// What can't be wired, or swallows full-size packets, is tried a second time
// unless the machine lacks something for it, and is absent from then on.
//
// Four kinds of work are not traffic for a time. "setup" makes and removes a
// network; "attach" has a program give a container a link and take it away
// (package attacher); "memory" makes one, reads what its programs hold, and reads it again
// with flows; "start" starts a command together with its network and asks it when
// the first byte came.
//
// Every sample is a line of samples.jsonl as soon as it is taken, so that
// neither Ctrl-C nor a kill loses more than the one under way. The report is
// made from that file.
//
// # Limits
//
// It must run inside a lab (lab.Settle). One experiment at a time.
package bench
