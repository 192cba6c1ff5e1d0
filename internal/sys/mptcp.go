package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// MPTCPInfo mirrors the head of struct mptcp_info (include/uapi/linux/mptcp.h). The
// kernel fills as much as the caller has room for.
type MPTCPInfo struct {
	Subflows           uint8 // additional ones, beyond the first
	AddAddrSignal      uint8
	AddAddrAccepted    uint8
	SubflowsMax        uint8
	AddAddrSignalMax   uint8
	AddAddrAcceptedMax uint8
	_                  [2]byte
	Flags              uint32
	Token              uint32
	WriteSeq           uint64
	SndUna             uint64
	RcvNxt             uint64
	LocalAddrUsed      uint8
	LocalAddrMax       uint8
	CsumEnabled        uint8
	_                  [1]byte
	Retransmits        uint32 // kernel 6.5
	BytesRetrans       uint64
	BytesSent          uint64
	BytesReceived      uint64
	BytesAcked         uint64
	SubflowsTotal      uint8 // kernel 6.9
	_                  [3]byte
	LastDataSentMillis uint32
	LastDataRecvMillis uint32
	LastAckRecvdMillis uint32
}

// MPTCPFallback is MPTCP_INFO_FLAG_FALLBACK: the connection has fallen back to plain TCP.
const MPTCPFallback = 1 << 0

// mptcpInfoOption is MPTCP_INFO, an option of level SOL_MPTCP.
const mptcpInfoOption = 1

// GetMPTCPInfo reads MPTCP_INFO. On a plain TCP socket it fails with EOPNOTSUPP.
func GetMPTCPInfo(fd int) (MPTCPInfo, error) {
	var info MPTCPInfo
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_MPTCP, mptcpInfoOption,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return MPTCPInfo{}, errno
	}
	return info, nil
}
