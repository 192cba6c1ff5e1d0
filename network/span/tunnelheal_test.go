package span_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"cleat/link"
	"cleat/network/span"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// damage is what somebody does to a host's devices.
type damage struct {
	name string
	do   func(h *host, k *netlink.Handle, o *host) error
}

// elsewhere is a damage that WireGuard may repair by itself.
const elsewhere = "a peer elsewhere"

// TestTunnelHeal checks that Sync restores what somebody has deleted or changed.
func TestTunnelHeal(t *testing.T) {
	onWireGuard := func(c func(*wgtypes.Config, wgtypes.Key)) func(*host, *netlink.Handle, *host) error {
		return func(h *host, _ *netlink.Handle, _ *host) error {
			return h.NS.Do(func() error {
				w, err := wgctrl.New()
				if err != nil {
					return err
				}
				defer w.Close()
				d, err := w.Device(span.WireGuardDevices[0])
				if err != nil {
					return err
				}
				var config wgtypes.Config
				c(&config, d.Peers[0].PublicKey)
				return w.ConfigureDevice(span.WireGuardDevices[0], config)
			})
		}
	}
	common := func(device string) []damage {
		change := func(f func(*netlink.Handle, netlink.Link) error) func(*host, *netlink.Handle, *host) error {
			return func(_ *host, k *netlink.Handle, _ *host) error {
				l, err := k.LinkByName(device)
				if err != nil {
					return err
				}
				return f(k, l)
			}
		}
		return []damage{
			{"the device is deleted", change(func(k *netlink.Handle, l netlink.Link) error { return k.LinkDel(l) })},
			{"the device is down", change(func(k *netlink.Handle, l netlink.Link) error { return k.LinkSetDown(l) })},
			{"another MTU", change(func(k *netlink.Handle, l netlink.Link) error { return k.LinkSetMTU(l, 1300) })},
			{"a route is deleted", func(_ *host, k *netlink.Handle, o *host) error {
				all, err := k.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: &net.IPNet{IP: o.blocks[0].Addr().AsSlice(), Mask: net.CIDRMask(26, 32)}}, netlink.RT_FILTER_DST)
				if err != nil || len(all) != 1 {
					return fmt.Errorf("%d routes: %v", len(all), err)
				}
				return k.RouteDel(&all[0])
			}},
			{"a route is changed", change(func(k *netlink.Handle, l netlink.Link) error {
				return k.RouteReplace(&netlink.Route{Dst: &net.IPNet{IP: net.IP{10, 64, 2, 0}, Mask: net.CIDRMask(26, 32)}, Priority: 7790,
					Protocol: span.Protocol, LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK})
			})},
			{"a stray route", change(func(k *netlink.Handle, l netlink.Link) error {
				return k.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IP{10, 64, 77, 0}, Mask: net.CIDRMask(26, 32)}, Priority: 7790,
					Protocol: span.Protocol, LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK})
			})},
		}
	}
	for _, c := range []struct {
		kind, device string
		more         []damage
	}{
		{"wireguard", span.WireGuardDevices[0], []damage{
			{"a peer is deleted", onWireGuard(func(c *wgtypes.Config, peer wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: peer, Remove: true}}
			})},
			{"a peer without addresses", onWireGuard(func(c *wgtypes.Config, peer wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: peer, ReplaceAllowedIPs: true}}
			})},
			{"a peer with another address", onWireGuard(func(c *wgtypes.Config, peer wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: peer, AllowedIPs: []net.IPNet{{IP: net.IP{10, 64, 99, 0}, Mask: net.CIDRMask(26, 32)}}}}
			})},
			{elsewhere, onWireGuard(func(c *wgtypes.Config, peer wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: peer, Endpoint: &net.UDPAddr{IP: net.IP{192, 0, 2, 77}, Port: 9}}}
			})},
			{"a stray peer", onWireGuard(func(c *wgtypes.Config, _ wgtypes.Key) {
				c.Peers = []wgtypes.PeerConfig{{PublicKey: wgtypes.Key{1}}}
			})},
			{"another key", onWireGuard(func(c *wgtypes.Config, _ wgtypes.Key) { c.PrivateKey = &wgtypes.Key{1} })},
			{"another port", onWireGuard(func(c *wgtypes.Config, _ wgtypes.Key) { port := 9; c.ListenPort = &port })},
		}},
		{"geneve", span.GeneveDevice, []damage{
			{"another Geneve device", func(h *host, k *netlink.Handle, _ *host) error {
				l, err := k.LinkByName(span.GeneveDevice)
				if err == nil {
					err = k.LinkDel(l)
				}
				if err != nil {
					return err
				}
				spec := link.GeneveSpec{Attrs: link.Attrs{Name: span.GeneveDevice}, VNI: 5, Remote: netip.MustParseAddr("192.0.2.9")}
				_, err = link.Create(h.NS, spec, link.Target{NS: h.NS})
				return err
			}},
			{"a neighbour is deleted", func(_ *host, k *netlink.Handle, o *host) error {
				l, err := k.LinkByName(span.GeneveDevice)
				if err != nil {
					return err
				}
				return k.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: o.addr.AsSlice()})
			}},
		}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			needKind(t, c.kind)
			tb := newTestbed(t, over4, 2)
			tb.serve()
			keys := newSecrets(t, tb)
			config := func(h *host) span.Config {
				if c.kind == "geneve" {
					return geneve(h.config(tb.hosts...))
				}
				return keys.wireGuard(tb, h, h.config(tb.hosts...))
			}
			h, o := tb.hosts[0], tb.hosts[1]
			tb.settleTunnels(t, config)
			k, err := link.Handle(h.NS)
			must(t, err)
			defer k.Close()
			for _, d := range slices.Concat(common(c.device), c.more) {
				t.Run(d.name, func(t *testing.T) {
					must(t, d.do(h, k, o))
					if len(h.sync(t, config(h))) == 0 && d.name != elsewhere {
						t.Error("Sync changes nothing")
					}
					tb.settleTunnels(t, config)
					must(t, errors.Join(reach(h.container.NS, o, 0), reach(o.container.NS, h, 0)))
				})
			}
		})
	}
}
