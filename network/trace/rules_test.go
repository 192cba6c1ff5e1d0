package trace

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rules as nft(8) compiles them (`nft --debug=netlink`).
func saddr(prefix string) []expr.Any {
	p := netip.MustParsePrefix(prefix)
	n := uint32(p.Bits() / 8) // whole bytes, as nft prefers
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: n},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: p.Addr().AsSlice()[:n]},
	}
}

func masked24(addr string) []expr.Any {
	a := netip.MustParseAddr(addr)
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{255, 255, 240, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: a.AsSlice()},
	}
}

func dport(n uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{byte(n >> 8), byte(n)}},
	}
}

func deviceRule(key expr.MetaKey, op expr.CmpOp, data string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Register: 1, Op: op, Data: []byte(data)}}
}

func padded(name string) string { return name + string(make([]byte, unix.IFNAMSIZ-len(name))) }

func nfproto(p byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{p}}}
}

func verdictOf(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func TestExamine(t *testing.T) {
	pkt := packet{
		src: netip.MustParseAddr("192.0.2.1"), dst: netip.MustParseAddr("198.51.100.7"), in: "eth0", out: "br-lan", inIndex: 2, outIndex: 3,
		mac: net.HardwareAddr{2, 0, 0, 0, 0, 1},
	}
	ether := []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 12, Len: 2}, &expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{8, 0}}}
	for _, tt := range []struct {
		name   string
		exprs  []expr.Any
		family nftables.TableFamily
		want   truth
		text   string
	}{
		{"unconditional", verdictOf(expr.VerdictDrop), nftables.TableFamilyINet, yes, "drop"},
		{"counter only", []expr.Any{&expr.Counter{Packets: 7}}, nftables.TableFamilyINet, yes, "counter packets 7"},
		{"source", saddr("192.0.2.1/32"), nftables.TableFamilyIPv4, yes, "ip saddr 192.0.2.1"},
		{"source's network", saddr("192.0.2.0/24"), nftables.TableFamilyIPv4, yes, "ip saddr 192.0.2.0/24"},
		{"another source", saddr("192.0.3.0/24"), nftables.TableFamilyIPv4, no, "ip saddr 192.0.3.0/24"},
		{"destination under a mask", masked24("198.51.96.0"), nftables.TableFamilyIPv4, yes, "ip daddr 198.51.96.0/20"},
		{"another under a mask", masked24("198.51.112.0"), nftables.TableFamilyIPv4, no, ""},
		{"a port", dport(443), nftables.TableFamilyINet, maybe, "l4proto tcp dport 443"},
		{"a port from elsewhere", slices.Concat(saddr("10.0.0.1/32"), dport(443)), nftables.TableFamilyINet, no, ""},
		{"incoming device", deviceRule(expr.MetaKeyIIFNAME, expr.CmpOpEq, padded("eth0")), nftables.TableFamilyINet, yes, `iifname "eth0"`},
		{"another device", deviceRule(expr.MetaKeyIIFNAME, expr.CmpOpEq, padded("eth01")), nftables.TableFamilyINet, no, `iifname "eth01"`},
		{"not the device", deviceRule(expr.MetaKeyOIFNAME, expr.CmpOpNeq, padded("br-lan")), nftables.TableFamilyINet, no, `oifname != "br-lan"`},
		{"devices by prefix", deviceRule(expr.MetaKeyOIFNAME, expr.CmpOpEq, "br-"), nftables.TableFamilyINet, yes, `oifname "br-*"`},
		{"IPv6 only", nfproto(unix.NFPROTO_IPV6), nftables.TableFamilyINet, no, "nfproto ipv6"},
		{"IPv4 only", nfproto(unix.NFPROTO_IPV4), nftables.TableFamilyINet, yes, "nfproto ipv4"},
		{"a set", []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, &expr.Lookup{SourceRegister: 1, SetName: "bad"}}, nftables.TableFamilyIPv4, maybe, "ip saddr in @bad"},
		{"connection state", []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{6, 0, 0, 0}, Xor: make([]byte, 4)}, &expr.Cmp{Register: 1, Op: expr.CmpOpNeq, Data: make([]byte, 4)}},
			nftables.TableFamilyINet, maybe, "ct state …"},
		{"a range around it", []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{192, 0, 2, 0}, ToData: []byte{192, 0, 2, 9}}},
			nftables.TableFamilyIPv4, yes, "ip saddr 192.0.2.0-192.0.2.9"},
		{"outside of a range", []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{192, 0, 2, 5}, ToData: []byte{192, 0, 2, 9}}},
			nftables.TableFamilyIPv4, no, ""},
		{"iptables' own match", []expr.Any{&expr.Match{Name: "addrtype"}}, nftables.TableFamilyIPv4, maybe, "[addrtype]"},
		{"Ethernet type in a bridge", ether, nftables.TableFamilyBridge, yes, "ether type ip"},
		{"Ethernet header where there may be none", ether, nftables.TableFamilyINet, maybe, ""},
		{"rate limit", []expr.Any{&expr.Limit{Rate: 10}}, nftables.TableFamilyINet, maybe, "limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, text := examine(tt.exprs, pkt, tt.family)
			if got != tt.want {
				t.Errorf("truth %d, want %d", got, tt.want)
			}
			if tt.text != "" && text != tt.text {
				t.Errorf("text %q, want %q", text, tt.text)
			}
		})
	}
}

// chainsOf returns a rule set of one table.
func chainsOf(family nftables.TableFamily, chains map[string][][]expr.Any, base string, hook nftables.ChainHook, policy nftables.ChainPolicy) ruleset {
	table := &nftables.Table{Family: family, Name: "t"}
	rs := ruleset{rules: map[chainKey][]*nftables.Rule{}}
	for name, rules := range chains {
		c := &nftables.Chain{Table: table, Name: name}
		if name == base {
			c.Hooknum, c.Policy = &hook, &policy
		}
		rs.chains = append(rs.chains, c)
		for i, exprs := range rules {
			rs.rules[keyOf(c)] = append(rs.rules[keyOf(c)], &nftables.Rule{Table: table, Chain: c, Handle: uint64(i + 1), Exprs: exprs})
		}
	}
	return rs
}

func TestFiltersFollowJumps(t *testing.T) {
	jump := []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "sub"}}
	rs := chainsOf(nftables.TableFamilyINet, map[string][][]expr.Any{
		"fwd": {
			slices.Concat(saddr("10.0.0.0/8"), verdictOf(expr.VerdictDrop)), // 1: another source
			jump, // 2
			slices.Concat(dport(22), verdictOf(expr.VerdictDrop)), // 3: never reached
		},
		"sub": {
			slices.Concat(dport(80), verdictOf(expr.VerdictDrop)), // 1
			verdictOf(expr.VerdictAccept),                         // 2: ends every packet
			verdictOf(expr.VerdictDrop),                           // 3: never reached
		},
	}, "fwd", nftables.ChainHook(unix.NF_INET_FORWARD), nftables.ChainPolicyDrop)
	pkt := packet{src: netip.MustParseAddr("192.0.2.1"), dst: netip.MustParseAddr("192.0.2.2")}

	budget := maxRules
	got := rs.filters(pkt, &budget, hookInput, hookForward)
	if len(got) != 1 {
		t.Fatalf("filters %+v, want the forward chain only", got)
	}
	f := got[0]
	if f.Table != "inet t" || f.Chain != "fwd" || f.Hook != "forward" || f.Policy != "drop" || f.Rules != 3 {
		t.Errorf("filter %+v", f)
	}
	type hit struct {
		chain   string
		handle  uint64
		certain bool
		drops   bool
	}
	var hits []hit
	for _, m := range f.Match {
		hits = append(hits, hit{m.Chain, m.Handle, m.Certain, m.Drops})
	}
	want := []hit{{"fwd", 2, true, false}, {"sub", 1, false, true}, {"sub", 2, true, false}}
	if !slices.Equal(hits, want) {
		t.Errorf("hits %+v, want %+v", hits, want)
	}
	// A jump that only some packets take does not end the chain.
	some := chainsOf(nftables.TableFamilyINet, map[string][][]expr.Any{
		"fwd": {slices.Concat(dport(80), jump), verdictOf(expr.VerdictDrop)},
		"sub": {verdictOf(expr.VerdictAccept)},
	}, "fwd", nftables.ChainHook(unix.NF_INET_FORWARD), nftables.ChainPolicyAccept)
	if got := some.filters(pkt, &budget, hookForward); len(got) != 1 || len(got[0].Match) != 3 {
		t.Errorf("filters %+v, want the drop behind the jump too", got)
	}
	if got := rs.filters(pkt, &budget, hookForward.inBridge()); len(got) != 0 {
		t.Errorf("a bridged frame sees %+v", got)
	}
}

// Root in a namespace can make chains jump to others many times each, so that there are
// more ways through them than can be followed.
func TestManyJumps(t *testing.T) {
	const levels, jumps = 5, 15
	rs := ruleset{rules: map[chainKey][]*nftables.Rule{}}
	table := &nftables.Table{Name: "t", Family: nftables.TableFamilyIPv4}
	hooked := nftables.ChainHook(hookForward.number)
	rs.chains = []*nftables.Chain{{Name: "0", Table: table, Hooknum: &hooked}}
	for level := range levels {
		var rules []*nftables.Rule
		for range jumps {
			rules = append(rules, &nftables.Rule{Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: strconv.Itoa(level + 1)}}})
		}
		rs.rules[chainKey{table.Family, "t", strconv.Itoa(level)}] = rules
	}
	budget := maxRules
	got := rs.filters(packet{src: netip.MustParseAddr("192.0.2.1"), dst: netip.MustParseAddr("192.0.2.2")}, &budget, hookForward)
	if len(got) != 1 || len(got[0].Match) > maxRules || !got[0].Cut {
		t.Errorf("%d chains, %d rules", len(got), len(got[0].Match))
	}
}

// FuzzRules examines arbitrary rules.
func FuzzRules(f *testing.F) {
	f.Add(uint8(0), uint32(12), uint32(4), []byte{192, 0, 2, 1}, "eth0")
	f.Add(uint8(1), uint32(0xfffffff0), uint32(0x20), []byte{}, "")
	f.Add(uint8(2), uint32(0), uint32(6), []byte("eth"), "\x1b[31m")
	f.Fuzz(func(t *testing.T, kind uint8, offset, size uint32, data []byte, name string) {
		pkt := packet{src: netip.MustParseAddr("192.0.2.1"), dst: netip.MustParseAddr("198.51.100.7"), in: name, out: "eth0", mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
		for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyBridge} {
			exprs := []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBase(kind % 4), Offset: offset, Len: size, OperationType: expr.PayloadLoad},
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: data, Xor: data},
				&expr.Cmp{Register: 1, Op: expr.CmpOp(kind % 7), Data: data},
				&expr.Meta{Key: expr.MetaKey(kind), Register: 1},
				&expr.Cmp{Register: 1, Op: expr.CmpOp(kind % 7), Data: data},
				&expr.Range{Register: 1, FromData: data, ToData: data},
				&expr.Lookup{SourceRegister: 1, SetName: name},
				&expr.Target{Name: name}, &expr.Match{Name: name},
				&expr.Verdict{Kind: expr.VerdictKind(kind), Chain: name},
			}
			examine(exprs, pkt, family)
		}
	})
}
