package nlsock

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// RulesGeneration returns the number of the nftables rules of the socket's namespace, which every change by anybody
// increases (nf_tables_commit in net/netfilter/nf_tables_api.c). The socket's protocol is NETLINK_NETFILTER.
func (s *Socket) RulesGeneration() (n uint32, err error) {
	const header = 4 // size of struct nfgenmsg
	_, body, err := s.Ask(Request{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Body: make([]byte, header)})
	if err != nil {
		return 0, fmt.Errorf("read the generation of the rules: %w", err)
	}
	if data, ok := Attribute(body[min(header, len(body)):], unix.NFTA_GEN_ID); ok && len(data) == 4 {
		return binary.BigEndian.Uint32(data), nil
	}
	return 0, fmt.Errorf("read the generation of the rules: %w", errMalformed)
}
