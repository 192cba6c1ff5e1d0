package firewall

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"cleat/internal/nlsock"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// A sourceCheck says for which families a host may drop packets that did not come in by the device
// through which it would send to their source. What comes out of the doorway looks like that.
type sourceCheck map[byte]bool

// sourceChecks finds out who looks at sources: the kernel (rp_filter), or a rule of nftables or of
// iptables. iptables-legacy counts if it has tables where such rules are usual.
func sourceChecks(ns *netns.NS) (sourceCheck, error) {
	found := sourceCheck{}
	err := ns.Do(func() error {
		mode, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/rp_filter")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		found[unix.NFPROTO_IPV4] = err == nil && strings.TrimSpace(string(mode)) != "0"
		for family, path := range map[byte]string{unix.NFPROTO_IPV4: "/proc/thread-self/net/ip_tables_names", unix.NFPROTO_IPV6: "/proc/thread-self/net/ip6_tables_names"} {
			names, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			tables := strings.Fields(string(names))
			found[family] = found[family] || slices.Contains(tables, "raw") || slices.Contains(tables, "mangle")
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find out who checks sources of packets: %w", err)
	}
	k, err := open(ns)
	if err != nil {
		return nil, err
	}
	defer k.close()
	all := nlsock.Request{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Body: header(unix.NFPROTO_UNSPEC)}
	for range readAttempts {
		err = k.reads.Dump(all, func(_ uint16, body []byte) {
			if checksSources(body) {
				found[unix.NFPROTO_IPV4] = found[unix.NFPROTO_IPV4] || body[0] != unix.NFPROTO_IPV6
				found[unix.NFPROTO_IPV6] = found[unix.NFPROTO_IPV6] || body[0] != unix.NFPROTO_IPV4
			}
		})
		if !errors.Is(err, nlsock.ErrInterrupted) {
			break
		}
	}
	if errors.Is(err, nlsock.ErrInterrupted) || errors.Is(err, nlsock.ErrTooLong) {
		return sourceCheck{unix.NFPROTO_IPV4: true, unix.NFPROTO_IPV6: true}, nil // nobody knows
	}
	if err != nil {
		return nil, fmt.Errorf("find rules that check sources of packets: %w", err)
	}
	return found, nil
}

// checksSources reports whether a rule looks up the route to a packet's source: nft's "fib saddr",
// or "-m rpfilter" of iptables. The argument is the body of a message about a rule.
func checksSources(body []byte) bool {
	for kind, list := range attributes(body) {
		if kind != unix.NFTA_RULE_EXPRESSIONS {
			continue
		}
		for _, e := range nlsock.Attributes(list) {
			a := attrs(e)
			data := attrs(a.get(unix.NFTA_EXPR_DATA))
			switch text(a.get(unix.NFTA_EXPR_NAME)) {
			case "fib":
				if number(data.get(unix.NFTA_FIB_FLAGS))&unix.NFTA_FIB_F_SADDR != 0 {
					return true
				}
			case "match":
				if text(data.get(unix.NFTA_MATCH_NAME)) == "rpfilter" {
					return true
				}
			}
		}
	}
	return false
}

// concernsSources reports whether a message is about a new mode of rp_filter for all devices.
func concernsSources(m message) bool {
	if m.kind != unix.RTM_NEWNETCONF {
		return false
	}
	all, mode := false, false
	for kind, data := range routeAttributes(m.body, netconfBytes) {
		switch kind {
		case netconfIndex:
			all = len(data) == 4 && int32(native.Uint32(data)) == netconfAllDevices
		case netconfReverse:
			mode = true
		}
	}
	return all && mode
}

// Of include/uapi/linux/netconf.h.
const (
	netconfBytes      = 4 // the size of struct netconfmsg, padded
	netconfIndex      = 1 // NETCONFA_IFINDEX
	netconfReverse    = 3 // NETCONFA_RP_FILTER
	netconfAllDevices = -1
)
