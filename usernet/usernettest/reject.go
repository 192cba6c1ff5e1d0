package usernettest

import (
	"fmt"
	"net/netip"

	"cleat/lab"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ICMP codes (RFC 792, RFC 1812, RFC 4443).
const (
	hostUnreachable4 = 1
	prohibited4      = 13
	addrUnreachable6 = 3
	prohibited6      = 1
)

// addRejections makes the node answer for some of its addresses as a router does that
// can't or may not reach them. Routes of type unreachable would do the same, but only a
// few times a second (net/ipv4/route.c, ip_error).
func addRejections(n *lab.Node) error {
	c, err := nftables.New(nftables.WithNetNSFd(n.NS.Fd()))
	if err != nil {
		return fmt.Errorf("open nftables of %s: %w", n, err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "rejections"})
	chain := c.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	for _, r := range []struct {
		addr netip.Addr
		code uint8
	}{
		{remoteAddr(V4, remoteUnreachable), hostUnreachable4}, {remoteAddr(V4, remoteProhibited), prohibited4},
		{remoteAddr(V6, remoteUnreachable), addrUnreachable6}, {remoteAddr(V6, remoteProhibited), prohibited6},
	} {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: reject(r.addr, r.code)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add rejections on %s: %w", n, err)
	}
	return nil
}

// reject answers packets to an address with an ICMP error of the given code.
func reject(to netip.Addr, code uint8) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16) // offset of the destination in the header
	if to.Is6() {
		family, offset = unix.NFPROTO_IPV6, 24
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(to.BitLen() / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: to.AsSlice()},
		&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code},
	}
}
