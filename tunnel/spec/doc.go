// Package spec reads a tunnel file, checks it, and fills in defaults. It consists of data
// and pure functions: it opens no files and does not look at the machine by itself.
//
// # Theory of operation
//
// Load reads the YAML strictly (package internal/yamlfile) and then checks what the
// values mean. It does not stop at the first mistake: each mistake becomes a Finding with
// its line and column, what is wrong and what is allowed, and the user gets all of them
// at once, in the order of the file. A File with an error among its findings has no
// Tunnel. Only text that is not YAML at all stops the reading at the first mistake.
//
// What depends on the machine at a certain moment, such as a device that is not plugged
// in, is never an error: CheckMachine compares the file with a Machine, which the caller
// has inspected, and adds warnings.
//
// A private key is in a file of its own, which Load opens by the caller's Opener. A file
// that group or others may read is refused, as ssh(1) does.
//
// Compare returns what a changed file changes in a running tunnel, and which of that
// needs a restart.
//
// # Limits
//
// A file has at most 64 KiB and 64 paths. Addresses are numeric: a name would have to be
// resolved over the very paths that it describes. The overhead of a packet is known here
// only as a lower bound: the tunnel itself measures what fits.
//
// Sources: RFC 8086 (GRE in UDP, port 4754), RFC 2784 and 2890 (GRE header, key and
// sequence number), RFC 7748 (X25519 keys), RFC 8200 section 5 (1280 bytes), RFC 791 (576
// bytes), net/core/dev.c:dev_valid_name (names of devices).
//
// # Example
//
//	file, err := spec.Load(r, "office.yaml", open)
//	if err != nil {
//		return err // r could not be read
//	}
//	if file.Tunnel == nil {
//		return errors.New(file.Findings[0].String())
//	}
package spec
