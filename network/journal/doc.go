// Package journal keeps the undo journal of one operation on the machine's
// wiring: what has to be done to be rid of it again, each piece on disk before the
// step that makes it necessary is taken.
//
// # Theory of operation
//
// A Journal is a file of one JSON object a line, which only grows. Who writes it
// holds a lock on it (flock(2)), which the kernel takes away when that process
// ends, however it ends. So a journal that is there and that nobody holds was left
// by one who died in the middle; whoever finds it with Open owns it from then on,
// undoes what it says from the last record to the first, and removes it. A
// process id would say less: the kernel gives it to others.
//
// When the operation is complete, Rename makes the journal into something else
// with one system call: there is no moment at which it is neither.
//
// Append returns when the kernel has the record; it does not wait for a disk.
// What the records undo lives in the same kernel and ends with it. A record that
// was only written in part belongs to a step that was not begun, and is left out.
//
// # Limits
//
// The directory must be on a local file system. Whoever reads a journal must
// expect that a record's step was not done: it is written before.
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
//	// make the link …
//	return j.Rename("/run/cleat/attach/live/web.eth1")
package journal
