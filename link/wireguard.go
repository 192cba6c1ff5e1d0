package link

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/netns"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// WireGuardKey is a secret: a private or a preshared key. The zero key means
// none. It prints as "(hidden)"; Text gives it away.
type WireGuardKey [32]byte

// WireGuardPublic is a public key, which prints in base64 as wg(8) does.
type WireGuardPublic [32]byte

// NewWireGuardKey makes a private key.
func NewWireGuardKey() (WireGuardKey, error) {
	k, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return WireGuardKey{}, fmt.Errorf("make wireguard key: %w", err)
	}
	return WireGuardKey(k), nil
}

// String hides the key.
func (k WireGuardKey) String() string { return hidden }

// GoString hides the key.
func (k WireGuardKey) GoString() string { return k.String() }

// Text is the key in base64.
func (k WireGuardKey) Text() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Public is the public key that belongs to a private one.
func (k WireGuardKey) Public() WireGuardPublic {
	return WireGuardPublic(wgtypes.Key(k).PublicKey())
}

// String is the key in base64.
func (k WireGuardPublic) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

func parseKey(s string) ([32]byte, bool) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) != 32 {
		return [32]byte{}, false
	}
	return [32]byte(b), true
}

// WireGuardPeer is another end. Comparable data.
type WireGuardPeer struct {
	PublicKey    WireGuardPublic
	PresharedKey WireGuardKey       // zero: none
	Endpoint     netip.AddrPort     // zero: learnt from its packets
	AllowedIPs   List[netip.Prefix] // what it may send from, and what goes to it
	Keepalive    time.Duration      // whole seconds up to 65535; 0: none
}

// text is the form that Parse reads: words NAME=VALUE.
func (p WireGuardPeer) text() string {
	words := []string{"public_key=" + p.PublicKey.String()}
	if p.PresharedKey != (WireGuardKey{}) {
		words = append(words, "preshared_key="+p.PresharedKey.Text())
	}
	if p.Endpoint.IsValid() {
		words = append(words, "endpoint="+p.Endpoint.String())
	}
	if p.AllowedIPs != (List[netip.Prefix]{}) {
		words = append(words, "allowed_ips="+p.AllowedIPs.String())
	}
	if p.Keepalive != 0 {
		words = append(words, "keepalive="+p.Keepalive.String())
	}
	return strings.Join(words, " ")
}

// String is the peer without its preshared key.
func (p WireGuardPeer) String() string {
	p.PresharedKey = WireGuardKey{}
	return p.text()
}

func (p WireGuardPeer) valid() bool {
	masked := func(n netip.Prefix) bool { return n.IsValid() && n == n.Masked() }
	all := p.AllowedIPs.All()
	return p.PublicKey != WireGuardPublic{} &&
		p.Keepalive >= 0 && p.Keepalive < 1<<16*time.Second && p.Keepalive%time.Second == 0 &&
		!slices.ContainsFunc(all, func(n netip.Prefix) bool { return !masked(n) })
}

func parsePeer(s string) (p WireGuardPeer, ok bool) {
	for _, word := range strings.Fields(s) {
		name, value, _ := strings.Cut(word, "=")
		var err error
		good := true
		switch name {
		case "public_key":
			p.PublicKey, good = parseKey(value)
		case "preshared_key":
			p.PresharedKey, good = parseKey(value)
		case "endpoint":
			p.Endpoint, err = netip.ParseAddrPort(value)
		case "allowed_ips":
			p.AllowedIPs, err = parsePrefixes(value)
		case "keepalive":
			p.Keepalive, err = time.ParseDuration(value)
		default:
			good = false
		}
		if err != nil || !good {
			return p, false
		}
	}
	return p, p.valid()
}

func parsePrefixes(s string) (List[netip.Prefix], error) {
	var all []netip.Prefix
	for _, part := range strings.Split(s, ",") {
		n, err := netip.ParsePrefix(part)
		if err != nil {
			return List[netip.Prefix]{}, err
		}
		all = append(all, n)
	}
	return ListOf(all...), nil
}

// WireGuardSpec is an encrypted tunnel of IP packets in UDP
// (wireguard.com/papers/wireguard.pdf, drivers/net/wireguard/). The outer
// packets leave from the namespace given to Create, wherever the link itself
// ends up.
type WireGuardSpec struct {
	Attrs                     // no MAC
	PrivateKey   WireGuardKey // zero: none yet, and no traffic
	ListenPort   int          // UDP; 0: the kernel's choice
	FirewallMark int          // of the outer packets, for routing; 0: none
	Peers        List[WireGuardPeer]
}

// Kind implements Spec.
func (WireGuardSpec) Kind() string { return "wireguard" }

// Validate implements Spec.
func (s WireGuardSpec) Validate() error {
	if err := checkValues("wireguard", s.params()); err != nil {
		return err
	}
	if s.MAC != (MAC{}) {
		return paramError("wireguard", "mac", s.MAC, "none: it has no Ethernet header")
	}
	return nil
}

func (s *WireGuardSpec) params() []field {
	return append(s.Attrs.params(),
		field{name: "private_key", val: secret{&s.PrivateKey}},
		field{name: "listen_port", val: u16(&s.ListenPort)},
		field{name: "fwmark", val: u32(&s.FirewallMark)},
		field{name: "peers", val: peers{&s.Peers}},
	)
}

func (s WireGuardSpec) create(m *creator) error {
	return m.newLink(request{kind: "wireguard", attrs: s.Attrs}, requestUnderlay)
}

func (s WireGuardSpec) configure(l *Link) error {
	cfg := wgtypes.Config{ReplacePeers: true}
	if s.PrivateKey != (WireGuardKey{}) {
		cfg.PrivateKey = (*wgtypes.Key)(&s.PrivateKey)
	}
	if s.ListenPort != 0 {
		cfg.ListenPort = &s.ListenPort
	}
	if s.FirewallMark != 0 {
		cfg.FirewallMark = &s.FirewallMark
	}
	for _, p := range s.Peers.All() {
		cfg.Peers = append(cfg.Peers, p.config())
	}
	w := l.current()
	c, err := wireGuardControl(w.ns)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.ConfigureDevice(w.name, cfg); err != nil {
		return fmt.Errorf("configure wireguard %q: %w", w.name, err)
	}
	return nil
}

func (p WireGuardPeer) config() wgtypes.PeerConfig {
	out := wgtypes.PeerConfig{PublicKey: wgtypes.Key(p.PublicKey)}
	if p.PresharedKey != (WireGuardKey{}) {
		out.PresharedKey = (*wgtypes.Key)(&p.PresharedKey)
	}
	if p.Endpoint.IsValid() {
		out.Endpoint = net.UDPAddrFromAddrPort(p.Endpoint)
	}
	if p.Keepalive != 0 {
		out.PersistentKeepaliveInterval = &p.Keepalive
	}
	for _, n := range p.AllowedIPs.All() {
		out.AllowedIPs = append(out.AllowedIPs, net.IPNet{IP: n.Addr().AsSlice(), Mask: net.CIDRMask(n.Bits(), n.Addr().BitLen())})
	}
	return out
}

// wireGuardControl opens the control socket in the link's namespace; close it.
func wireGuardControl(ns *netns.NS) (*wgctrl.Client, error) {
	var c *wgctrl.Client
	err := ns.Do(func() error {
		var err error
		c, err = wgctrl.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open wireguard control in %s: %w", ns, err)
	}
	return c, nil
}

func (s WireGuardSpec) read(r *reader) (Spec, error) {
	c, err := wireGuardControl(r.ns)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	d, err := c.Device(r.info.name)
	if err != nil {
		return nil, fmt.Errorf("read wireguard %q: %w", r.info.name, err)
	}
	asked := map[WireGuardPublic]WireGuardPeer{}
	for _, p := range s.Peers.All() {
		asked[p.PublicKey] = p
	}
	var all []WireGuardPeer
	for _, p := range d.Peers {
		all = append(all, readPeer(p, asked[WireGuardPublic(p.PublicKey)]))
	}
	return WireGuardSpec{
		Attrs:        r.info.attrs(),
		PrivateKey:   WireGuardKey(d.PrivateKey),
		ListenPort:   d.ListenPort,
		FirewallMark: d.FirewallMark,
		Peers:        sortLike(s.Peers.All(), all),
	}, nil
}

func readPeer(p wgtypes.Peer, asked WireGuardPeer) WireGuardPeer {
	got := WireGuardPeer{
		PublicKey:    WireGuardPublic(p.PublicKey),
		PresharedKey: WireGuardKey(p.PresharedKey),
		Keepalive:    p.PersistentKeepaliveInterval,
	}
	if p.Endpoint != nil {
		a := p.Endpoint.AddrPort()
		got.Endpoint = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	var ips []netip.Prefix
	for _, n := range p.AllowedIPs {
		a, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		ips = append(ips, netip.PrefixFrom(a.Unmap(), bits))
	}
	got.AllowedIPs = sortLike(asked.AllowedIPs.All(), ips)
	return got
}

// secret is a key as a parameter.
type secret struct{ p *WireGuardKey }

func (v secret) secret()                          {}
func (v secret) isZero() bool                     { return *v.p == WireGuardKey{} }
func (v secret) valid() bool                      { return true }
func (v secret) allowed() string                  { return "32 bytes in base64" }
func (v secret) text() string                     { return v.p.Text() }
func (v secret) encode(linkNames) ([]byte, error) { return nil, nil }
func (v secret) decode([]byte, linkNames) error   { return nil }

func (v secret) setText(s string) bool {
	k, ok := parseKey(s)
	*v.p = k
	return ok
}

// peers is the list of peers as a parameter: separated by semicolons.
type peers struct{ p *List[WireGuardPeer] }

func (v peers) secret()      {}
func (v peers) isZero() bool { return *v.p == List[WireGuardPeer]{} }

func (v peers) valid() bool {
	seen := map[WireGuardPublic]bool{}
	for _, p := range v.p.All() {
		if seen[p.PublicKey] || !p.valid() {
			return false
		}
		seen[p.PublicKey] = true
	}
	return true
}

func (v peers) allowed() string {
	return "peers separated by ';', each with a public key of its own: public_key=BASE64 [preshared_key=BASE64] [endpoint=ADDR:PORT] [allowed_ips=PREFIX,…] [keepalive=25s]; prefixes without host bits"
}

func (v peers) text() string {
	var all []string
	for _, p := range v.p.All() {
		all = append(all, p.text())
	}
	return strings.Join(all, "; ")
}

func (v peers) setText(s string) bool {
	var all []WireGuardPeer
	for _, part := range strings.Split(s, ";") {
		p, ok := parsePeer(part)
		if !ok {
			return false
		}
		all = append(all, p)
	}
	*v.p = ListOf(all...)
	return v.valid()
}

func (v peers) encode(linkNames) ([]byte, error) { return nil, nil }
func (v peers) decode([]byte, linkNames) error   { return nil }
