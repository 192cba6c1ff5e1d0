package attach

import (
	"errors"
	"fmt"

	"cleat/internal/rate"
	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (p *planner) shape() {
	s := Shape{Link: p.spec.Name, Via: shorten("ifb-" + p.spec.Name), Rate: p.spec.RateBitsPerSec, Burst: p.spec.BurstBytes}
	if p.peer != "" {
		s.Link, s.Via, s.Host = p.peer, p.hostName("ifb"), true
	}
	p.add(s)
}

// Shape makes a link slow in both directions: what it sends by a token bucket
// filter (TBF), what it receives by leading that through a device of its own
// (IFB) that has another.
//
// Of a pair it is the end on the host, where the container can't change it;
// of another link it is that itself.
type Shape struct {
	Link  string `json:"link"`
	Host  bool   `json:"on_host"`
	Via   string `json:"via"` // the IFB's name
	Rate  int64  `json:"rate"`
	Burst int    `json:"burst,omitempty"`
}

func (s Shape) String() string {
	text := fmt.Sprintf("limit %s to %sbit/s each way, inbound by way of %s", s.Link, rate.Text(s.Rate), s.Via)
	if s.Host {
		text = fmt.Sprintf("limit %s to %sbit/s each way, outbound by way of %s", s.Link, rate.Text(s.Rate), s.Via)
	}
	return text
}

func (s Shape) do(r *run) error {
	at := r.cont
	if s.Host {
		at = r.host
	}
	limit := link.Shaping{RateBitsPerSec: s.Rate, BurstBytes: s.Burst}
	l, err := link.Find(at.ns, s.Link)
	if err != nil {
		return err
	}
	if err := link.Shape(l, limit); err != nil { // goes with the link
		return err
	}
	mtu, err := l.MTU()
	if err != nil {
		return err
	}
	mac := randomMAC(unicast)
	if err := r.record(Undo{Link: &undoLink{NS: at.ref, Name: s.Via, MAC: mac}}); err != nil {
		return err
	}
	ifb, err := link.Create(at.ns, link.IFBSpec{Attrs: link.Attrs{Name: s.Via, MAC: mac, MTU: mtu}}, link.Target{})
	if err != nil {
		return err
	}
	if err := link.Shape(ifb, limit); err != nil {
		return err
	}
	// It loses and counts what was not redirected to it (ifb_xmit, drivers/net/ifb.c), such as
	// what the kernel sends for IPv6.
	if err := setIPv6(at, s.Via, "disable_ipv6", "1"); err != nil {
		return err
	}
	if err := at.LinkSetUp(byIndex(ifb.Index())); err != nil {
		return fmt.Errorf("bring %s up: %w", s.Via, err)
	}
	return redirect(at, l.Index(), ifb.Index())
}

// redirect leads what comes in at one device out of another.
func redirect(s *namespace, from, to int) error {
	in := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: from, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := s.QdiscAdd(in); err != nil {
		return shapeError(err, "CONFIG_NET_SCH_INGRESS")
	}
	all := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from, Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: unix.ETH_P_ALL},
		Actions:     []netlink.Action{netlink.NewMirredAction(to)},
	}
	if err := s.FilterAdd(all); err != nil {
		return shapeError(err, "CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED")
	}
	return nil
}

func shapeError(err error, option string) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return &link.Lack{What: "limits in both directions", Reason: "the kernel lacks " + option, Remedy: "a kernel with it, or leave the rate out"}
	}
	return fmt.Errorf("lead packets through another device: %w", err)
}
