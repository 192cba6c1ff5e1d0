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
// checking its owner and unlink(2), between which the address could change hands. So a process
// that removes an entry holds the lock on the directory (flock(2)).
//
// Finding a free address among the entries would mean reading the whole directory. Therefore each
// subnet has a hint: a sparse file with a cursor and one byte for each address. Allocate finds the
// next free address from the cursor on, and tries to make that entry. Behind the end it starts again at
// the beginning, as CNI's host-local does. A byte, unlike a bit, can be written without reading its
// neighbours, so the hint needs no lock either. A byte is written after its entry is made or removed,
// so a hint can be wrong in two ways:
//
//   - A taken address is free in the hint. The attempt fails, and Allocate corrects the byte and goes
//     on. After 256 such attempts it rebuilds the hint.
//   - A free address is taken in the hint, because a process was killed between removing the entry
//     and clearing the byte. The address stays unused until the hint has no free address. Allocate
//     then rebuilds the hint.
//
// A byte also keeps that an address was taken and is free again, for Reused. A rebuilt hint does not
// know that of any address.
//
// Allocate also rebuilds a hint that is missing, incomplete, or made for another range. A rebuild
// reads the names of all entries with the lock held, so that none is removed meanwhile. The header is
// written last, so a file that was written only in part is not valid. Allocate returns a FullError
// only if a rebuilt hint has no free address.
//
// Allocate and Claim pass the address to the caller's record function before they make the entry.
// So a journal has every entry that a killed process made. To undo a record, call Release: it does
// nothing if the owner does not have the address. Without a journal, ReleaseAll frees the addresses
// of a dead owner.
//
// Remember appends a line to a file. When the file reaches 64 KiB it is compacted: only the newest
// note of each owner is kept, and of those the newest 32 KiB.
//
// # Limits
//
// The directory must be on a local file system. Entries are not synced: after a power failure the
// newest may be missing, and removed ones may be back. After a boot, the caller should claim the
// addresses of its endpoints again, and release those of owners that are gone.
//
// An owner must not release an address while it claims the same address in another process: the
// package can't tell the two apart.
//
// Allocate chooses from the first 16,777,216 addresses of a subnet, which matters for IPv6 only.
// IPv6's last 128 addresses of a subnet (RFC 2526) are not excluded: Linux does not use them, and
// small subnets need theirs.
//
// ext4 does not use a deleted inode again at once. After tens of thousands of releases within a
// minute it takes up to 1 ms to make an entry, instead of 30 µs.
//
// If a pool is almost full, Allocate may return a FullError although an address is released during
// the call. A process that is stopped (SIGSTOP) while it holds the lock delays all releases.
//
// Sources: symlink(2), unlink(2), flock(2), rename(2); RFC 3021 and RFC 6164 (two addresses), RFC
// 4193 (unique local addresses), RFC 4291 section 2.6.1 (anycast), machine-id(5); Linux,
// fs/ext4/ialloc.c recently_deleted; CNI plugins, plugins/ipam/host-local; Docker,
// daemon/libnetwork/ipamutils; Podman, containers.conf(5) default_subnet_pools.
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
