// Package bench runs an experiment: it schedules jobs, builds networks, measures, and
// keeps every sample.
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
// An experiment is a list of jobs. A schedule puts them into randomised complete
// blocks. For each job the bench takes the testbed it needs, building it at first
// use and keeping it while there is room. It starts a server on the far end of each
// pair, probes the path MTU once, and runs one client process a pair, all of which
// begin at the same instant. Clients and servers are copies of this program,
// started by command line and pinned to processors as the job's placement says. The
// bench itself sleeps while they work. For the duration of the work it meters the
// machine's processor time. Clients that search for a rate do so before that, and the
// bench checks that time for foreign load, too.
//
// A sample that was disturbed, by foreign load, by the hypervisor, or because the
// generator was late, is kept and marked bad, and the measurement is repeated at
// the end of its block, at most twice. At most one measurement in eight is, so that
// the experiment also ends on a machine that is never quiet; repeats says which. In
// the warm-up only failed measurements are repeated. A cell that has only bad samples
// is shown with a warning.
//
// Only traffic is checked for disturbance. The works "setup", "memory", "start",
// "attach", "burst" and "event" are not: most take less time than the kernel's clocks of
// processor time need to tell, steps of 10 ms a processor. Their medians ignore some
// disturbed samples, and failed samples of "start" alone are repeated.
//
// Of rootless networks, one is kept at a time: their programs share the limits of one
// user. A network that learns from its traffic what its links are like is rebuilt for each
// measurement, with new links and programs; its path MTU is probed once, in the
// warm-up. Scripted events of its links (one dies, or flaps) happen while the
// clients work, timed from the instant at which they begin. Samples of such networks
// also hold the share of the payload that the links have room for (package
// multipath): over the whole measurement, over its first two seconds, and over the
// rest, or over what comes after Work.Steady if that is set.
//
// A network that can't be built, or that drops full-size packets, is tried a second
// time unless the machine lacks something for it. Then it is recorded as absent.
//
// Five kinds of work are not traffic for a time. "setup" makes and removes a
// network. "attach" runs a program that attaches a container, and detaches it, and
// "burst" does so for many at the same time (package attacher). "memory" reads the
// memory of a network's programs without and with flows, or of a named network's with
// many endpoints. "start" starts a command together with its network; the command
// reports when the first byte arrived.
//
// Between other machines (Machines, RunBetween) the same happens, but each machine builds
// its side of a network (wiring.Side), and clients and servers run there (package
// remote). Processor time is the sum of both machines' meters. Every machine begins and
// measures by its own clock.
//
// Every sample is a line of samples.jsonl as soon as it is taken, so that neither
// Ctrl-C nor a kill loses more than the measurement under way. The report is made
// from that file.
//
// # Limits
//
// Run must run inside a lab (lab.Settle). One experiment at a time. Between machines only
// traffic is measured.
package bench
