package wiring

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"cleat/lab"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rules are those of Docker's bridge driver with its userland proxy on or off, in
// the same chains and order, with a counter in each as iptables writes them: nat
// PREROUTING, OUTPUT, POSTROUTING and DOCKER; filter FORWARD, DOCKER-USER,
// DOCKER-ISOLATION-STAGE-1 and -2, and DOCKER.

// minPublished is the least number of published ports, so that the chains are as long
// as on a busy host.
const minPublished = 50

// publishedEndpoints returns the pairs' servers, in containers, which the host publishes
// at the same port. Before them come as many unused ones as it takes to have
// minPublished.
func publishedEndpoints(pairs int) []netip.AddrPort {
	var all []netip.AddrPort
	for i := range minPublished - pairs {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 3, byte(i + 1)}), uint16(8000+i)))
	}
	for i := range pairs {
		all = append(all, endpoint(serverAddr(i), i))
	}
	return all
}

// ruleset collects rules for one namespace.
type ruleset struct {
	*nftables.Conn
	nat, filter *nftables.Table
	pending     int   // rules not yet flushed
	err         error // of the first flush that failed
}

// batchSize is how many rules are sent to the kernel at once. The kernel answers each
// with a message, and an unprivileged socket's buffer holds only so many.
const batchSize = 32

func writeRules(host *lab.Node, m publishMode, published []netip.AddrPort) error {
	conn, err := nftables.New(nftables.WithNetNSFd(host.NS.Fd()))
	if err != nil {
		return fmt.Errorf("open nftables on %s: %w", host, err)
	}
	r := &ruleset{
		Conn:   conn,
		nat:    conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "nat"}),
		filter: conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "filter"}),
	}
	r.addNAT(m, published)
	r.addFilter(published)
	r.flush()
	if r.err != nil {
		return fmt.Errorf("write the rules of %s: %w", host, r.err)
	}
	return nil
}

// flush sends the pending rules. It does nothing after an error.
func (r *ruleset) flush() {
	if r.err == nil {
		r.err = r.Flush()
	}
	r.pending = 0
}

func (r *ruleset) addNAT(m publishMode, published []netip.AddrPort) {
	base := func(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return r.AddChain(&nftables.Chain{Name: name, Table: r.nat, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: priority})
	}
	docker := r.AddChain(&nftables.Chain{Name: "DOCKER", Table: r.nat})
	pre := base("PREROUTING", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	out := base("OUTPUT", nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	post := base("POSTROUTING", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)

	// The proxy, if any, takes connections from the containers and to the loopback.
	notFromBridge := interfaceName(expr.MetaKeyIIFNAME, expr.CmpOpNeq)
	r.rule(pre, toLocal(), jump("DOCKER"))
	if m == userlandProxy {
		r.rule(out, inPrefix(destinationOffset, expr.CmpOpNeq, loopbackNet), toLocal(), jump("DOCKER"))
		r.rule(docker, interfaceName(expr.MetaKeyIIFNAME, expr.CmpOpEq), verdict(expr.VerdictReturn))
	} else {
		notFromBridge = nil
		r.rule(out, toLocal(), jump("DOCKER"))
	}
	subnet := withPrefix(gateway).Masked()
	r.rule(post, source(subnet), interfaceName(expr.MetaKeyOIFNAME, expr.CmpOpNeq), masquerade())
	if m == kernelNAT {
		// The container can't answer the loopback address, which is the source of the
		// host's own packets.
		r.rule(post, fromLocal(), interfaceName(expr.MetaKeyOIFNAME, expr.CmpOpEq), masquerade())
	}
	for _, p := range published {
		self := netip.PrefixFrom(p.Addr(), 32)
		for _, proto := range protocols {
			r.rule(post, source(self), destination(self), toPort(proto, p.Port()), masquerade())
			r.rule(docker, notFromBridge, toPort(proto, p.Port()), destinationNAT(p))
		}
	}
}

func (r *ruleset) addFilter(published []netip.AddrPort) {
	drop := nftables.ChainPolicyDrop
	forward := r.AddChain(&nftables.Chain{Name: "FORWARD", Table: r.filter, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	chains := map[string]*nftables.Chain{}
	for _, name := range []string{"DOCKER", "DOCKER-USER", "DOCKER-ISOLATION-STAGE-1", "DOCKER-ISOLATION-STAGE-2"} {
		chains[name] = r.AddChain(&nftables.Chain{Name: name, Table: r.filter})
	}
	toBridge := interfaceName(expr.MetaKeyOIFNAME, expr.CmpOpEq)
	fromBridge := interfaceName(expr.MetaKeyIIFNAME, expr.CmpOpEq)
	notToBridge := interfaceName(expr.MetaKeyOIFNAME, expr.CmpOpNeq)
	notFromBridge := interfaceName(expr.MetaKeyIIFNAME, expr.CmpOpNeq)

	r.rule(forward, jump("DOCKER-USER"))
	r.rule(forward, jump("DOCKER-ISOLATION-STAGE-1"))
	r.rule(forward, toBridge, established(), verdict(expr.VerdictAccept))
	r.rule(forward, toBridge, jump("DOCKER"))
	r.rule(forward, fromBridge, notToBridge, verdict(expr.VerdictAccept))
	r.rule(forward, fromBridge, toBridge, verdict(expr.VerdictAccept))
	r.rule(chains["DOCKER-USER"], verdict(expr.VerdictReturn))
	r.rule(chains["DOCKER-ISOLATION-STAGE-1"], fromBridge, notToBridge, jump("DOCKER-ISOLATION-STAGE-2"))
	r.rule(chains["DOCKER-ISOLATION-STAGE-1"], verdict(expr.VerdictReturn))
	r.rule(chains["DOCKER-ISOLATION-STAGE-2"], toBridge, verdict(expr.VerdictDrop))
	r.rule(chains["DOCKER-ISOLATION-STAGE-2"], verdict(expr.VerdictReturn))
	for _, p := range published {
		for _, proto := range protocols {
			r.rule(chains["DOCKER"], destination(netip.PrefixFrom(p.Addr(), 32)), notFromBridge, toBridge,
				toPort(proto, p.Port()), verdict(expr.VerdictAccept))
		}
	}
}

// protocols are published as by `-p PORT:PORT -p PORT:PORT/udp`.
var protocols = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}

// rule appends a rule of several matches and a last part, which is the action. A counter
// precedes the action, as in rules of iptables.
func (r *ruleset) rule(c *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for i, p := range parts {
		if i == len(parts)-1 {
			all = append(all, &expr.Counter{})
		}
		all = append(all, p...)
	}
	r.AddRule(&nftables.Rule{Table: c.Table, Chain: c, Exprs: all})
	if r.pending++; r.pending >= batchSize {
		r.flush()
	}
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// interfaceName compares an interface's name with containerBridge.
func interfaceName(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, containerBridge)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: name}}
}

// Offsets of the addresses in the IPv4 header (RFC 791 section 3.1).
const (
	sourceOffset      = 12
	destinationOffset = 16
)

// loopbackNet never leaves a host (RFC 1122 section 3.2.1.3).
var loopbackNet = netip.MustParsePrefix("127.0.0.0/8")

func source(p netip.Prefix) []expr.Any { return inPrefix(sourceOffset, expr.CmpOpEq, p) }

func destination(p netip.Prefix) []expr.Any { return inPrefix(destinationOffset, expr.CmpOpEq, p) }

func inPrefix(offset uint32, op expr.CmpOp, p netip.Prefix) []expr.Any {
	mask := make([]byte, 4)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Addr().AsSlice()},
	}
}

func toPort(proto byte, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

func destinationNAT(to netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
}

// toLocal matches packets to an address of the host itself.
func toLocal() []expr.Any {
	return addressType(&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true})
}

func fromLocal() []expr.Any {
	return addressType(&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true})
}

func addressType(fib *expr.Fib) []expr.Any {
	return []expr.Any{fib, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)}}
}

// established matches packets of established or related connections.
func established() []expr.Any {
	mask := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}
