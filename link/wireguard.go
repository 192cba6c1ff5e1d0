package link

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// WireGuardSpec is an encrypted tunnel of IP packets in UDP
// (wireguard.com/papers/wireguard.pdf, drivers/net/wireguard/,
// CONFIG_WIREGUARD). The outer packets leave from the namespace given to Create,
// wherever the link itself ends up.
type WireGuardSpec struct {
	Attrs                     // no MAC
	PrivateKey   WireGuardKey // zero: none yet, and no traffic
	ListenPort   int          // UDP port; 0: chosen by the kernel
	FirewallMark int          // of the outer packets, for routing; 0: none
	Peers        List[WireGuardPeer]
}

// WireGuardPeer is a remote peer. It is comparable data.
type WireGuardPeer struct {
	PublicKey    WireGuardPublic
	PresharedKey WireGuardKey       // zero: none
	Endpoint     netip.AddrPort     // zero: learnt from the peer's packets
	AllowedIPs   List[netip.Prefix] // source addresses accepted from the peer, and destinations routed to it
	Keepalive    time.Duration      // whole seconds, up to 65535 s; 0: none
}

// WireGuardKey is a secret: a private or a preshared key. The zero key means no
// key. A key prints as "(hidden)"; Text reveals it.
type WireGuardKey [32]byte

// WireGuardPublic is a public key. It prints in base64, as in wg(8).
type WireGuardPublic [32]byte

// NewWireGuardKey generates a private key.
func NewWireGuardKey() (WireGuardKey, error) {
	k, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return WireGuardKey{}, fmt.Errorf("generate wireguard key: %w", err)
	}
	return WireGuardKey(k), nil
}

// String returns a placeholder.
func (k WireGuardKey) String() string { return hidden }

// GoString returns a placeholder.
func (k WireGuardKey) GoString() string { return k.String() }

// Text returns the key in base64.
func (k WireGuardKey) Text() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Public returns the public key of a private key.
func (k WireGuardKey) Public() WireGuardPublic {
	return WireGuardPublic(wgtypes.Key(k).PublicKey())
}

// String returns the key in base64.
func (k WireGuardPublic) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

func parseKey(s string) ([32]byte, bool) {
	k, err := wgtypes.ParseKey(s)
	return k, err == nil
}

// text returns the peer as words NAME=VALUE, as Parse accepts it.
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

// String returns the peer without its preshared key.
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
	for word := range strings.FieldsSeq(s) {
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
	for part := range strings.SplitSeq(s, ",") {
		n, err := netip.ParsePrefix(part)
		if err != nil {
			return List[netip.Prefix]{}, err
		}
		all = append(all, n)
	}
	return ListOf(all...), nil
}

// Kind implements Spec.
func (WireGuardSpec) Kind() string { return "wireguard" }

// Validate implements Spec.
func (s WireGuardSpec) Validate() error {
	return validate("wireguard", s.params(),
		rule{s.MAC != (MAC{}), "mac", "none: it has no Ethernet header"},
	)
}

func (s *WireGuardSpec) params() []field {
	return append(s.Attrs.params(),
		field{name: "private_key", val: secret{p: &s.PrivateKey}},
		field{name: "listen_port", val: u16(&s.ListenPort)},
		field{name: "fwmark", val: u32(&s.FirewallMark)},
		field{name: "peers", val: peers{p: &s.Peers}},
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
	c, err := openIn(w.ns, "wireguard control", wgctrl.New)
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

func (s *WireGuardSpec) complete(r *reader, asked Spec) error {
	c, err := openIn(r.ns, "wireguard control", wgctrl.New)
	if err != nil {
		return err
	}
	defer c.Close()
	d, err := c.Device(r.info.name)
	if err != nil {
		return fmt.Errorf("read wireguard %q: %w", r.info.name, err)
	}
	want := asked.(WireGuardSpec).Peers.All()
	byKey := map[WireGuardPublic]WireGuardPeer{}
	for _, p := range want {
		byKey[p.PublicKey] = p
	}
	var all []WireGuardPeer
	for _, p := range d.Peers {
		all = append(all, readPeer(p, byKey[WireGuardPublic(p.PublicKey)]))
	}
	s.PrivateKey, s.ListenPort, s.FirewallMark = WireGuardKey(d.PrivateKey), d.ListenPort, d.FirewallMark
	s.Peers = sortLike(want, all)
	return nil
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

type secret struct {
	parameterOnly
	p *WireGuardKey
}

func (v secret) secret()         {}
func (v secret) isZero() bool    { return *v.p == WireGuardKey{} }
func (v secret) valid() bool     { return true }
func (v secret) allowed() string { return "32 bytes in base64" }
func (v secret) text() string    { return v.p.Text() }

func (v secret) setText(s string) bool {
	k, ok := parseKey(s)
	*v.p = k
	return ok
}

// peers is the list of peers as a parameter, separated by semicolons.
type peers struct {
	parameterOnly
	p *List[WireGuardPeer]
}

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
	for part := range strings.SplitSeq(s, ";") {
		p, ok := parsePeer(part)
		if !ok {
			return false
		}
		all = append(all, p)
	}
	*v.p = ListOf(all...)
	return v.valid()
}
