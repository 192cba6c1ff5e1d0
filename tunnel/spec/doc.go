// Package spec is what a tunnel file says: it reads one, checks it, and fills in
// what it leaves out. It is data and pure functions: it opens nothing and asks
// the machine nothing by itself.
//
// # Theory of operation
//
// Load reads the YAML strictly (package internal/yamlfile) and then checks
// what the values mean. It stops nowhere: each mistake becomes a Finding with
// its line and column, what is wrong and what is allowed, and a person gets all
// of them at once, in the order of the file. A File with an error among its
// findings has no Tunnel. Only text that is no YAML at all ends the reading at
// the first mistake.
//
// What depends on the machine and the moment, such as a device that is not
// plugged in, is never an error: CheckMachine holds the file against a Machine,
// which the caller has looked at, and adds warnings.
//
// A private key is in a file of its own, which Load opens by the caller's
// Opener. A file that group or others may read is refused, as ssh(1) does.
//
// Compare tells a running tunnel what a changed file asks of it, and which of
// that it can't have without being started again.
//
// # Limits
//
// A file has at most 64 KiB and 64 paths. Addresses are numbers: a name would
// have to be looked up over the very paths that it describes. What a packet
// needs in addition on the way is known here as a lower bound alone: the tunnel
// itself measures what fits.
//
// Sources: RFC 8086 (GRE in UDP, port 4754), RFC 2784 and 2890 (GRE header, key
// and sequence number), RFC 7748 (X25519 keys), RFC 8200 section 5 (1280 bytes),
// RFC 791 (576 bytes), net/core/dev.c:dev_valid_name (names of devices).
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
