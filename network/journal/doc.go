// Package journal keeps the undo journal of one operation on the machine's wiring. Each step's undo
// record is in a file before the step is taken.
//
// # Theory of operation
//
// A Journal is a file of one JSON object a line. It only grows. Its writer holds a lock on it
// (flock(2)), which the kernel releases when the process ends, however it ends. So a journal without
// an owner was left by a process that died in the middle. Whoever opens it with Open owns it from
// then on, undoes its records from the last to the first, and removes it. A process id would be a
// weaker sign: the kernel reuses them.
//
// When the operation is complete, Rename turns the journal into something else with one system
// call, so that there is no moment at which it is neither.
//
// Append returns when the kernel has the record. It does not wait for a disk: what the records
// undo lives in the same kernel, and ends with it. A record that was only written in part belongs
// to a step that had not begun, and is ignored.
//
// # Limits
//
// The directory must be on a local file system. A record is written before its step, so the step
// of the last record may not have been taken.
//
// Sources: flock(2), rename(2).
//
//	j, err := journal.Create("/run/cleat/attach/ops/web.eth1")
//	if err != nil {
//		return err
//	}
//	if err := j.Append(removeLink{Name: "eth1", MAC: mac}); err != nil {
//		return err
//	}
//	// create the link …
//	return j.Rename("/run/cleat/attach/live/web.eth1")
package journal
