// Package ipam gives addresses of a network to its endpoints, and chooses subnets for networks.
// Several processes can use the same directory at once, and any of them may be killed at any
// moment: no address is given to two owners, and none is lost.
//
// # Theory of operation
//
// A Pool is a directory. Each taken address has an entry in it, a symbolic link whose target is
// the owner:
//
//	10.20.0.5   -> docker.web
//	10.20.0.9   -> reserved/printer
//	2001:db8::5 -> docker.web
//	.10.20.0.0_24.hint     which addresses of a subnet are taken, and the cursor
//	.remembered            the addresses that owners had
//
// The entries alone decide. symlink(2) makes an entry with its owner in one step, and fails if
// the address is taken, so taking an address needs no lock. Removing an entry is two steps,
// checking its owner and unlink(2), between which the address could change hands. So whoever
// removes an entry holds the lock on the directory (flock(2)).
//
// Looking for a free address among the entries would read the whole directory. Therefore each
// subnet has a hint, a sparse file with one byte for each address, and a cursor. Allocate looks
// for the next zero byte behind the cursor, round and round as CNI's host-local does, and tries to
// make that entry. A byte, other than a bit, can be written without reading its neighbours, so the
// hint needs no lock either. A hint is wrong in one of two ways:
//
//   - It has a taken address as free, since bytes are written after the entry. The attempt fails,
//     Allocate corrects the byte and goes on. After 256 such attempts it rebuilds the hint.
//   - It has a free address as taken, if a process was killed between removing an entry and
//     clearing the byte. The address rests until the hint has no free address; then Allocate
//     rebuilds it.
//
// A missing hint, and one of another size or subnet, are rebuilt as well. A rebuild reads the
// names of all entries, with the lock held, so that none is removed meanwhile. It writes the header
// last, so a file that is only written in part is not valid. Only when a rebuilt hint has no free
// address, Allocate returns a FullError.
//
// Allocate and Claim pass the address to the caller's record function before they make the entry.
// So a journal has every entry that a killed process has made, and the undo function is Release,
// which does nothing if the owner does not have the address. Without a journal, ReleaseAll frees
// all that a dead owner has.
//
// Remember appends a line to a file. When the file has 64 KiB it is compacted to the newest note of
// each owner, and to half the size.
//
// # Limits
//
// The directory must be on a local file system, and belong to one pool. Entries are not synced:
// after a power failure the newest may be missing, or removed ones back. After a boot, the caller
// should claim the addresses of its endpoints again, and release those of owners that are gone. Owners
// are not checked: an owner is whoever gives its id.
//
// Allocate chooses from the first 16,777,216 addresses of a subnet, which matters for IPv6 only.
// IPv6's last 128 addresses of a subnet (RFC 2526) are not excluded: Linux does not use them, and
// small subnets need theirs.
//
// If a pool is almost full, Allocate may return a FullError although an address was released during
// the call. A process that is stopped (SIGSTOP) with the lock held delays the release of addresses.
//
// Sources: symlink(2), unlink(2), flock(2), rename(2); RFC 3021 and RFC 6164 (two addresses), RFC
// 4193 (unique local addresses), RFC 4291 section 2.6.1 (anycast), machine-id(5); CNI plugins,
// plugins/ipam/host-local; Docker, daemon/libnetwork/ipamutils; Podman, containers.conf(5)
// default_subnet_pools.
//
//	pool := &ipam.Pool{Dir: dir, Subnets: []ipam.Subnet{{
//		Prefix:  netip.MustParsePrefix("10.20.0.0/24"),
//		Gateway: netip.MustParseAddr("10.20.0.1"),
//	}}}
//	subnet, owner := pool.Subnets[0].Prefix, ipam.Owner("docker.web")
//	addr, err := pool.Allocate(subnet, owner, pool.Remembered(subnet, owner), func(a netip.Addr) error {
//		return journal.Append(releaseAddress{a, owner})
//	})
//	if err != nil {
//		return err
//	}
//	// use addr …
//	if err := pool.Remember(addr, owner); err != nil {
//		return err
//	}
//	return pool.Release(addr, owner)
package ipam
