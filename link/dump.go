package link

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpAttempts bounds how often Dump asks. An attempt takes less than a millisecond for a
// hundred addresses.
const dumpAttempts = 20

// Dump calls list, a function that lists objects of the kernel such as addresses or routes,
// again while something changes during the list: the kernel then reports that the list may
// lack objects. Where changes never end, Dump accepts the list of the last attempt.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpAttempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, nil
}
