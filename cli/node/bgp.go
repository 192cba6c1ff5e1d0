package node

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cleat/cli/hint"
	"cleat/network/bgp"
	"cleat/overlay"

	"github.com/spf13/pflag"
)

// bgpFlags are the flags about routers.
type bgpFlags struct {
	peers []string
	as    uint32
	port  uint16
}

// noPeers is the value of --bgp-peer that ends BGP.
const noPeers = "none"

const peerExample = "e.g. --bgp-as 65001 --bgp-peer 192.0.2.254,as=65000"

func (f *bgpFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.peers, "bgp-peer", nil, "exchange routes by BGP with a router or route reflector: `PEER` is ADDRESS[,as=N][,password=FILE][,bfd][,hold=TIME][,multihop=N][,max=N][,accept=default]; may be repeated; kept for later starts, until \"none\"")
	flags.Uint32Var(&f.as, "bgp-as", 0, "autonomous system `NUMBER` of this host")
	flags.Uint16Var(&f.port, "bgp-port", 0, "TCP `PORT` at which peers can begin a session (default: only this host begins)")
}

// given reports whether there are such flags.
func (f *bgpFlags) given() bool { return len(f.peers) > 0 || f.as != 0 || f.port != 0 }

// parse returns what the flags ask for; nil if that is no BGP.
func (f *bgpFlags) parse() (*overlay.BGP, error) {
	if !f.given() || slices.Equal(f.peers, []string{noPeers}) && f.as == 0 && f.port == 0 {
		return nil, nil
	}
	switch {
	case len(f.peers) == 0:
		return nil, hint.With(hint.Usagef("--bgp-as and --bgp-port need --bgp-peer"), peerExample)
	case f.as == 0:
		return nil, hint.With(hint.Usagef("--bgp-peer needs --bgp-as, the number of this host's autonomous system"), peerExample+"; 64512 to 65534 are for private use")
	}
	b := &overlay.BGP{AS: f.as, Port: f.port}
	check := bgp.Config{RouterID: netip.AddrFrom4([4]byte{192, 0, 2, 1}), AS: f.as}
	for _, text := range f.peers {
		p, err := parsePeer(text)
		if err != nil {
			return nil, err
		}
		b.Peers = append(b.Peers, p)
		check.Peers = append(check.Peers, bgp.Peer{Address: p.Address, AS: p.AS, BFD: p.BFD, Multihop: p.Multihop, Hold: p.Hold})
	}
	if _, err := bgp.New(check); err != nil {
		return nil, hint.With(hint.Usage(err), peerExample)
	}
	return b, nil
}

func parsePeer(text string) (p overlay.BGPPeer, err error) {
	at, options, _ := strings.Cut(text, ",")
	if p.Address, err = netip.ParseAddr(at); err != nil {
		return p, hint.With(hint.Usagef("--bgp-peer %s: want an IP address first", text), peerExample)
	}
	if options == "" {
		return p, nil
	}
	for _, o := range strings.Split(options, ",") {
		key, value, _ := strings.Cut(o, "=")
		if err := setPeer(&p, key, value); err != nil {
			return p, hint.With(hint.Usagef("--bgp-peer %s: %w", text, err), peerExample)
		}
	}
	return p, nil
}

// setPeer sets an option of a peer.
func setPeer(p *overlay.BGPPeer, key, value string) error {
	number := func(most uint64) (uint64, error) {
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil || n == 0 || n > most {
			return 0, fmt.Errorf("%s=%s: want a number from 1 to %d", key, value, most)
		}
		return n, nil
	}
	var n uint64
	var err error
	switch key {
	case "as":
		n, err = number(1<<32 - 1)
		p.AS = uint32(n)
	case "multihop":
		n, err = number(255)
		p.Multihop = uint8(n)
	case "max":
		n, err = number(1 << 20)
		p.MaxPrefixes = uint32(n)
	case "hold":
		if p.Hold, err = time.ParseDuration(value); err != nil || p.Hold%time.Second != 0 || p.Hold > 65535*time.Second {
			return fmt.Errorf("hold=%s: want whole seconds, e.g. hold=9s", value)
		}
	case "password":
		if p.Password, err = filepath.Abs(value); err == nil {
			_, err = os.ReadFile(p.Password)
		}
	case "accept":
		if value != "default" {
			return fmt.Errorf("accept=%s: only accept=default exists", value)
		}
		p.Default = true
	case "bfd":
		if value != "" {
			return fmt.Errorf("bfd has no value")
		}
		p.BFD = true
	default:
		return fmt.Errorf("unknown option %q; there are as, password, bfd, hold, multihop, max and accept", key)
	}
	return err
}
