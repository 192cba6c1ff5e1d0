// Package atomicfile replaces files as a whole: a reader sees the old file or
// the new one, never a part, and a failure leaves the old file and nothing else.
//
// # Theory of operation
//
// Write writes a temporary file in the same directory, synchronises it and
// renames it over the old one. On any error it removes the temporary file.
//
// # Limits
//
// A process that is killed while it writes leaves its temporary file, whose name
// begins with a dot. A symbolic link at the path is replaced, not followed.
//
// Sources: rename(2), fsync(2).
//
//	err := atomicfile.Write("report.html", func(w io.Writer) error {
//		_, err := w.Write(page)
//		return err
//	})
package atomicfile
