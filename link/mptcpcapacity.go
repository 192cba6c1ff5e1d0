package link

import (
	"errors"
	"fmt"
	"net/netip"
	"sort"

	"cleat/netns"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// MPTCPCapacity is how much of MPTCP the running kernel allows in one namespace.
type MPTCPCapacity struct {
	Subflows  int `json:"subflows"`  // of one connection, beyond the first: the highest limit
	Endpoints int `json:"endpoints"` // in the kernel's list
}

// Bounds of the search: the attribute of a limit has 32 bits, the kernel's counters
// have 8 (struct mptcp_pm_data, net/mptcp/protocol.h), and so have endpoints' ids.
const (
	mptcpLimitBound    = 1 << 16
	mptcpEndpointBound = 255
)

// ProbeMPTCPCapacity asks the kernel, by trying, how much it allows: limits, and
// endpoints of addresses nobody has, until it refuses. It changes ns, which is to be
// one that was made for this.
func ProbeMPTCPCapacity(ns *netns.NS) (MPTCPCapacity, error) {
	m, err := dialMPTCP(ns)
	if err != nil {
		return MPTCPCapacity{}, err
	}
	defer m.Close()
	most := MPTCPCapacity{}
	if most.Subflows, err = m.maxSubflows(); err != nil {
		return most, fmt.Errorf("find the highest mptcp limit in %s: %w", ns, err)
	}
	if most.Endpoints, err = m.maxEndpoints(); err != nil {
		return most, fmt.Errorf("find how many mptcp endpoints there can be in %s: %w", ns, err)
	}
	return most, nil
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

// mostEndpoints adds them one by one: what a kernel says when there are too many is
// ERANGE or EINVAL, by version, and to neither is there another reason here.
func (m *mptcpConn) maxEndpoints() (int, error) {
	for n := range mptcpEndpointBound {
		nobody := netip.AddrFrom4([4]byte{198, 18, 0, byte(n + 1)}) // RFC 2544
		addr, err := m.encode(MPTCPEndpoint{Addr: nobody, Subflow: true})
		if err != nil {
			return n, err
		}
		_, err = m.execute(mptcpAddAddr, netlink.Acknowledge, addr)
		switch {
		case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSPC):
			return n, nil
		case err != nil:
			return n, kernelError(err)
		}
	}
	return mptcpEndpointBound, nil
}
