package attach

import (
	"errors"
	"fmt"

	"cleat/internal/rate"
	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// shape plans the rate limit. Of a pair, the end on the host is limited.
func (p *planner) shape() {
	in, out := p.spec.rates()
	s := Shape{Link: p.spec.Name, Via: DeviceName("ifb-" + p.spec.Name), Rate: out, Received: in, Burst: p.spec.BurstBytes}
	if p.peer != "" {
		s.Link, s.Via, s.Host, s.Rate, s.Received = p.peer, p.hostDevice("ifb"), true, in, out
	}
	p.add(s)
}

// Shape limits the rate of a link in both directions: what it sends by a token bucket filter
// (TBF), what it receives by redirecting it to another device (IFB) with a TBF. Of a pair it
// limits the end on the host, where the container can't remove the limit.
type Shape struct {
	Link string `json:"link"`
	Host bool   `json:"on_host"`
	Via  string `json:"via"`  // name of the IFB
	Rate int64  `json:"rate"` // of what the device sends; 0: no limit
	// Received is the rate of what the device receives; 0: no limit.
	Received int64 `json:"received"`
	Burst    int   `json:"burst,omitempty"` // bytes; default: depends on the rate
}

func (s Shape) String() string {
	direction := "inbound"
	if s.Host {
		direction = "outbound"
	}
	switch {
	case s.Received == 0:
		return fmt.Sprintf("limit what %s sends to %sbit/s", s.Link, rate.Text(s.Rate))
	case s.Rate == 0:
		return fmt.Sprintf("limit what %s receives to %sbit/s, through %s", s.Link, rate.Text(s.Received), s.Via)
	case s.Rate != s.Received:
		return fmt.Sprintf("limit what %s sends to %sbit/s, and what it receives to %sbit/s, %s through %s", s.Link, rate.Text(s.Rate), rate.Text(s.Received), direction, s.Via)
	}
	return fmt.Sprintf("limit %s to %sbit/s in each direction, %s through %s", s.Link, rate.Text(s.Rate), direction, s.Via)
}

func (s Shape) do(r *run) error {
	at := r.cont
	if s.Host {
		at = r.host
	}
	l, err := link.Find(at.ns, s.Link)
	if err != nil {
		return err
	}
	if s.Rate != 0 {
		if err := link.Shape(l, link.Shaping{RateBitsPerSec: s.Rate, BurstBytes: s.Burst}); err != nil { // the filter goes with the link
			return err
		}
	}
	if s.Received == 0 {
		return nil
	}
	mtu, err := l.MTU()
	if err != nil {
		return err
	}
	m := undoLink{NS: at.ref, Name: s.Via, MAC: randomMAC(unicast), Type: "ifb"}
	ifb, err := at.createLink(r.record, m, false, func(name string) (*link.Link, error) {
		return link.Create(at.ns, link.IFBSpec{Attrs: link.Attrs{Name: name, MAC: m.MAC, MTU: mtu}}, link.Target{})
	})
	if err != nil {
		return err
	}
	if err := link.Shape(ifb, link.Shaping{RateBitsPerSec: s.Received, BurstBytes: s.Burst}); err != nil {
		return err
	}
	// An IFB drops and counts packets that were not redirected to it (ifb_xmit,
	// drivers/net/ifb.c), such as those that the kernel sends for IPv6.
	if err := at.setIPv6(s.Via, "disable_ipv6", "1"); err != nil {
		return err
	}
	if err := at.LinkSetUp(byIndex(ifb.Index())); err != nil {
		return fmt.Errorf("bring %s up: %w", s.Via, err)
	}
	return redirect(at, l.Index(), ifb.Index())
}

// redirect redirects packets received by one device to another.
func redirect(n *namespace, from, to int) error {
	in := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: from, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	err := n.QdiscAdd(in)
	if errors.Is(err, unix.EEXIST) { // a keeper was quicker, and has taken the link for one without a rate
		clsact := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: from, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"}
		if err = n.QdiscDel(clsact); err == nil {
			err = n.QdiscAdd(in)
		}
	}
	if err != nil {
		return shapeError(err, "CONFIG_NET_SCH_INGRESS")
	}
	all := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from, Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: unix.ETH_P_ALL},
		Actions:     []netlink.Action{netlink.NewMirredAction(to)},
	}
	if err := n.FilterAdd(all); err != nil {
		return shapeError(err, "CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED")
	}
	return nil
}

func shapeError(err error, option string) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return &link.Lack{What: "rate limits in both directions", Reason: "the kernel lacks " + option, Remedy: "use a kernel with it, or leave the rate out"}
	}
	return fmt.Errorf("redirect packets: %w", err)
}
