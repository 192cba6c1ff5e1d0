package traffic

import (
	"cleat/internal/sys"
)

// noteMPTCP records whether the connection really uses MPTCP.
func (c *client) noteMPTCP(fd int) {
	info, err := sys.GetMPTCPInfo(fd)
	if err != nil || info.Flags&sys.MPTCPFallback != 0 {
		c.result.MPTCPFallback = true
		c.warn("MPTCP fell back to TCP")
		return
	}
	c.result.Subflows = 1 + int(info.Subflows)
}
