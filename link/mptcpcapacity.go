package link

import (
	"errors"
	"net/netip"
	"sort"

	"cleat/netns"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MPTCPCapacity is how much MPTCP the running kernel allows in one namespace.
type MPTCPCapacity struct {
	Subflows  int `json:"subflows"`  // of one connection, beyond the first: the highest value of the limit
	Endpoints int `json:"endpoints"` // in the kernel's list
}

// Bounds of the search. The attribute of a limit has 32 bits, but the kernel's
// counters (struct mptcp_pm_data, net/mptcp/protocol.h) and endpoint IDs have 8.
const (
	mptcpLimitBound    = 1 << 16
	mptcpEndpointBound = 255
)

// ProbeMPTCPCapacity finds the kernel's capacity by trial: it raises the limit and
// adds endpoints of unused addresses until the kernel refuses. It changes ns,
// which should be a scratch namespace.
func ProbeMPTCPCapacity(ns *netns.NS) (MPTCPCapacity, error) {
	var found MPTCPCapacity
	err := withMPTCP(ns, "find the mptcp capacity of", func(m *mptcpConn) (err error) {
		if found.Subflows, err = m.maxSubflows(); err != nil {
			return err
		}
		found.Endpoints, err = m.maxEndpoints()
		return err
	})
	return found, err
}

func (m *mptcpConn) maxSubflows() (int, error) {
	var failed error
	refused := sort.Search(mptcpLimitBound, func(n int) bool {
		err := m.setLimits(MPTCPLimits{Subflows: n})
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.As(err, new(*ParamError)) {
			failed = err
		}
		return err != nil
	})
	return max(refused-1, 0), failed
}

// maxEndpoints adds endpoints one by one. When there are too many, the error is
// ERANGE, EINVAL or ENOSPC, by kernel version; a valid new endpoint gives these
// errors no other cause.
func (m *mptcpConn) maxEndpoints() (int, error) {
	for n := range mptcpEndpointBound {
		unused := netip.AddrFrom4([4]byte{198, 18, 0, byte(n + 1)}) // RFC 2544
		addr, err := m.encode(MPTCPEndpoint{Addr: unused, Subflow: true})
		if err != nil {
			return n, err
		}
		_, err = m.execute(mptcpAddAddr, netlink.Acknowledge, addr)
		switch {
		case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSPC):
			return n, nil
		case err != nil:
			return n, err
		}
	}
	return mptcpEndpointBound, nil
}
