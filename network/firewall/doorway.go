package firewall

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// doorway is a pair of devices. The first packet of a connection to a published port enters it
// once all chains for incoming packets have accepted it, and leaves it at the other end as a
// new packet, whose destination is then translated. See the package comment.
type doorway struct {
	in, out string // the devices
	mark    uint32
}

const (
	// doorwayMTU is the largest that a veth device accepts: datagrams are not fragmented.
	doorwayMTU = 65535
	// rulePriority is that of the first of the routing rules. They come before those of most
	// programs, but concern only what has to do with the doorway.
	rulePriority    = 500
	vrfRulePriority = rulePriority + 3 // of all rules that lead into VRFs, after the three of door.rules
	// routingProtocol marks routes and rules as the kernel's. Programs that remove what is not
	// theirs, such as systemd-networkd, spare those.
	routingProtocol = unix.RTPROT_KERNEL
	// defaultMark is a bit that no widespread program uses.
	defaultMark = 1 << 24
	// defaultDevices is the start of the names of the devices.
	defaultDevices = "cleat-in"
)

func (t Table) mark() uint32 {
	if t.Mark == 0 {
		return defaultMark
	}
	return t.Mark
}

// doorway returns the table's doorway. It need not exist.
func (t Table) doorway() doorway {
	start := t.Devices
	if start == "" {
		start = defaultDevices
	}
	return doorway{in: start + "0", out: start + "1", mark: t.mark()}
}

// router returns where duplicates of packets are sent to.
func (d doorway) router(f family) netip.Addr {
	a := f.router.Addr().AsSlice()
	a[len(a)-1] = byte(bits.TrailingZeros32(d.mark))
	addr, _ := netip.AddrFromSlice(a)
	return addr
}

// A part is a setting of the doorway.
type part struct {
	name  string // for messages
	right func() (bool, error)
	fix   func() error
}

// door gives access to the doorway of a table.
type door struct {
	doorway
	ns      *netns.NS
	checks  sourceCheck
	h       *netlink.Handle
	in, out netlink.Link // nil: do not exist
	vrfs    []vrfRoute
}

func (t Table) door() (*door, error) {
	d := &door{doorway: t.doorway(), ns: t.NS}
	if bits.OnesCount32(d.mark) != 1 {
		return nil, invalid("mark %#x of table %s: a single bit is allowed", d.mark, t.Name)
	}
	if err := validateDevice(d.doorway.in); err != nil {
		return nil, err
	}
	h, err := link.Handle(t.NS)
	if err != nil {
		return nil, err
	}
	d.h = h
	if err := d.find(); err != nil {
		h.Close()
		return nil, err
	}
	return d, nil
}

// find looks for the devices. One without the other is as good as none.
func (d *door) find() error {
	d.in, d.out = nil, nil
	var found [2]netlink.Link
	for i, name := range []string{d.doorway.in, d.doorway.out} {
		l, err := d.h.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find device %s: %w", name, err)
		}
		if l.Type() != "veth" {
			return fmt.Errorf("device %s is not a veth device of the firewall: %w", name, os.ErrExist)
		}
		found[i] = l
	}
	if found[0] == nil || found[1] == nil || found[0].Attrs().ParentIndex != found[1].Attrs().Index {
		return nil
	}
	d.in, d.out = found[0], found[1]
	return nil
}

// openAttempts bounds how often the doorway is made because somebody removes it meanwhile.
const openAttempts = 3

// open makes the doorway, or repairs it.
func (d *door) open() (err error) {
	if d.checks, err = sourceChecks(d.ns); err != nil {
		return err
	}
	for range openAttempts {
		if err = d.tryOpen(); !errors.Is(err, unix.ENODEV) {
			return err
		}
		if err := d.find(); err != nil {
			return err
		}
	}
	return err
}

func (d *door) tryOpen() error {
	if d.in == nil {
		if err := d.create(); err != nil {
			return err
		}
	}
	for _, p := range d.parts() {
		if err := p.set(); err != nil {
			return err
		}
	}
	return nil
}

func (p part) set() error {
	right, err := p.right()
	if err == nil && !right {
		err = p.fix()
	}
	if err != nil {
		return fmt.Errorf("set up %s: %w", p.name, err)
	}
	return nil
}

// faults lists what of the doorway is not as it should be.
func (d *door) faults() (all []Difference, err error) {
	if d.in == nil {
		return []Difference{{"", "device " + d.doorway.in, "is missing"}}, nil
	}
	if d.checks, err = sourceChecks(d.ns); err != nil {
		return nil, err
	}
	for _, p := range d.parts() {
		right, err := p.right()
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", p.name, err)
		}
		if !right {
			all = append(all, Difference{"", p.name, "is not set up"})
		}
	}
	return all, nil
}

func (d *door) create() error {
	in, out := d.doorway.in, d.doorway.out
	for _, name := range []string{in, out} {
		if l, err := d.h.LinkByName(name); err == nil {
			_ = d.h.LinkDel(l) // half of a pair
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = in, doorwayMTU
	err := d.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: out, PeerMTU: doorwayMTU})
	if err != nil {
		return fmt.Errorf("create devices %s and %s: %w", in, out, err)
	}
	if err := d.find(); err != nil {
		return err
	}
	if d.in == nil {
		return fmt.Errorf("device %s vanished", in)
	}
	return nil
}

// close removes the doorway.
func (d *door) close() error {
	d.vrfs = nil
	for _, f := range families {
		for _, r := range d.rules(f) {
			if err := d.h.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) && !isMissingFamily(err) {
				return fmt.Errorf("remove routing rule: %w", err)
			}
		}
		if err := d.vrfRulesPart(f).set(); err != nil {
			return err
		}
	}
	if d.in == nil {
		return nil
	}
	if err := d.h.LinkDel(d.in); err != nil {
		return fmt.Errorf("remove device %s: %w", d.in.Attrs().Name, err)
	}
	return nil
}

// parts lists the settings, in the order in which they are made.
func (d *door) parts() []part {
	in, out := d.doorway.in, d.doorway.out
	parts := []part{
		d.sysctl("ipv6/conf/"+in+"/addr_gen_mode", "1"), // no link-local address
		d.sysctl("ipv6/conf/"+out+"/addr_gen_mode", "1"),
		d.sysctl("ipv6/conf/"+in+"/disable_ipv6", "0"), // the host may have disabled it for new devices
		d.sysctl("ipv6/conf/"+out+"/disable_ipv6", "0"),
		d.sysctl("ipv6/conf/"+out+"/accept_ra", "0"),
		d.sysctl("ipv6/conf/"+out+"/forwarding", "1"),
		d.sysctl("ipv4/conf/"+out+"/forwarding", "1"),
		d.sysctl("ipv4/conf/"+out+"/rp_filter", "0"),
		d.sysctl("ipv4/conf/"+out+"/src_valid_mark", "1"),
		// A device without ARP sends everything to its own address, so that of the other end
		// must be the same.
		{"address of device " + out, d.sameAddress, func() error { return d.h.LinkSetHardwareAddr(d.out, d.in.Attrs().HardwareAddr) }},
		{"flags of device " + in, flagsOf(d.in), func() error { return errors.Join(d.h.LinkSetARPOff(d.in), d.h.LinkSetUp(d.in)) }},
		{"flags of device " + out, flagsOf(d.out), func() error { return errors.Join(d.h.LinkSetARPOff(d.out), d.h.LinkSetUp(d.out)) }},
	}
	for _, f := range families {
		parts = append(parts, d.route(f, d.in, hostNet(d.router(f)), unix.RT_TABLE_LOCAL), d.vrfRulesPart(f))
		if !d.checks[f.id] {
			continue
		}
		everything := net.IPNet{IP: make(net.IP, f.addrBytes), Mask: make(net.IPMask, f.addrBytes)}
		parts = append(parts, d.route(f, d.out, &everything, int(d.mark)))
		for _, r := range d.rules(f) {
			parts = append(parts, d.rulePart(f, r))
		}
	}
	return parts
}

// rules returns the routing rules of hosts that check where packets come from.
//
// Packets come out of the doorway with source addresses that are elsewhere. For those who check
// this, whether with rp_filter=1 or by rules of some firewall, the way back to a source is
// through the doorway if the packet has the mark. The kernel looks for it as if a packet came
// from lo, or from the device that this packet leaves by. So the rule about the mark concerns
// all packets but those that come from the doorway themselves, which are routed as others: the
// first rule skips it, to a third one that changes nothing.
//
// A host without routing rules of its own looks up one route for each packet, and with any rule
// two (fib_has_custom_rules, net/ipv4/fib_frontend.c), until it starts again. So these rules are
// made only where they are needed.
func (d *door) rules(f family) []*netlink.Rule {
	skip, back, end := netlink.NewRule(), netlink.NewRule(), netlink.NewRule()
	for i, r := range []*netlink.Rule{skip, back, end} {
		r.Family, r.Priority, r.Table, r.Protocol = f.domain(), rulePriority+i, int(d.mark), routingProtocol
	}
	skip.IifName, skip.Goto, skip.Table = d.doorway.out, end.Priority, unix.RT_TABLE_UNSPEC
	back.Mark, back.Mask = d.mark, &d.mark
	end.Dst, end.Table = hostNet(d.router(f)), unix.RT_TABLE_LOCAL
	return []*netlink.Rule{skip, back, end}
}

func (d *door) sameAddress() (bool, error) {
	return bytes.Equal(d.in.Attrs().HardwareAddr, d.out.Attrs().HardwareAddr), nil
}

func flagsOf(l netlink.Link) func() (bool, error) {
	return func() (bool, error) {
		const want = unix.IFF_UP | unix.IFF_NOARP
		return l.Attrs().RawFlags&want == want, nil
	}
}

// sysctl returns a part for a parameter below /proc/sys/net. Kernels without IPv6 lack some,
// and don't need them.
func (d *door) sysctl(path, value string) part {
	full := "/proc/sys/net/" + path
	return part{
		name: "sysctl net/" + path,
		right: func() (right bool, err error) {
			err = d.ns.Do(func() error {
				now, err := os.ReadFile(full)
				right = strings.TrimSpace(string(now)) == value || errors.Is(err, os.ErrNotExist)
				if right {
					return nil
				}
				return err
			})
			return right, err
		},
		fix: func() error {
			return d.ns.Do(func() error { return os.WriteFile(full, []byte(value), 0) })
		},
	}
}

func hostNet(a netip.Addr) *net.IPNet { return netOf(netip.PrefixFrom(a, a.BitLen())) }

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// route returns the part for a route in a routing table.
func (d *door) route(f family, through netlink.Link, to *net.IPNet, table int) part {
	r := &netlink.Route{LinkIndex: through.Attrs().Index, Dst: to, Table: table, Protocol: routingProtocol}
	if f.id == unix.NFPROTO_IPV4 {
		r.Scope = netlink.SCOPE_LINK
	}
	return part{
		name: "route to " + to.String() + " through " + through.Attrs().Name,
		right: func() (bool, error) {
			all, err := link.Dump(func() ([]netlink.Route, error) {
				return d.h.RouteListFiltered(f.domain(), r, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
			})
			for _, got := range all {
				if got.Dst.String() == to.String() {
					return true, nil
				}
			}
			return isMissingFamily(err), ignoreMissingFamily(err)
		},
		fix: func() error { return d.h.RouteReplace(r) },
	}
}

func (d *door) rulePart(f family, r *netlink.Rule) part {
	return part{
		name: f.name + " routing rule " + strconv.Itoa(r.Priority),
		right: func() (bool, error) {
			all, err := link.Dump(func() ([]netlink.Rule, error) { return d.h.RuleListFiltered(f.domain(), r, netlink.RT_FILTER_PRIORITY) })
			for _, got := range all {
				if got.Mark == r.Mark && got.IifName == r.IifName && got.Goto == r.Goto && got.Table == r.Table && fmt.Sprint(got.Dst) == fmt.Sprint(r.Dst) {
					return true, nil
				}
			}
			return isMissingFamily(err), ignoreMissingFamily(err)
		},
		fix: func() error { return d.h.RuleAdd(r) },
	}
}

// domain returns the family as sockets know it.
func (f family) domain() int {
	if f.id == unix.NFPROTO_IPV4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// isMissingFamily reports whether a kernel has no IPv6.
func isMissingFamily(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

func ignoreMissingFamily(err error) error {
	if isMissingFamily(err) {
		return nil
	}
	return err
}
