package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// Times of the protocol, in the units of the library.
const (
	retrySeconds = 2 // between attempts to connect: the library's minimum
	// deferralSeconds bounds how long a speaker that restarts waits for its peers before it announces (RFC 4724,
	// section 4.1). What it announces does not depend on what they send.
	deferralSeconds = 3
	bfdMicroseconds = 300_000 // between packets of BFD
	bfdMultiplier   = 3       // missing packets that end a session
)

// neverListen is the port of a server that only dials.
const neverListen = -1

// start starts the server without peers.
func (s *Speaker) start(ctx context.Context, b *server.BgpServer) error {
	port := int32(neverListen)
	if s.cfg.Port != 0 {
		port = int32(s.cfg.Port)
	}
	err := b.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: s.cfg.AS, RouterId: s.cfg.RouterID.String(), ListenPort: port, UseMultiplePaths: true,
	}})
	if err != nil {
		return fmt.Errorf("start BGP: %w", err)
	}
	// Only this host's own prefixes are announced.
	own := &api.Policy{Name: "own", Statements: []*api.Statement{{
		Name:       "own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := b.AddPolicy(ctx, &api.AddPolicyRequest{Policy: own}); err != nil {
		return fmt.Errorf("add policy of BGP: %w", err)
	}
	err = b.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_EXPORT,
		Policies: []*api.Policy{{Name: "own"}}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
	}})
	if err != nil {
		return fmt.Errorf("assign policy of BGP: %w", err)
	}
	err = b.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPathUpdate: func([]*apiutil.Path, time.Time) { signal(s.changed) },
		OnBestPath:   func([]*apiutil.Path, time.Time) { signal(s.changed) },
		OnPathEor:    func(p *apiutil.Path, _ time.Time) { s.onEOR(p) },
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) { s.onPeer(e) },
	}, server.WatchBestPath(false), server.WatchPostUpdate(false, "", ""), server.WatchAdjInWithdraw(), server.WatchEor(false), server.WatchPeer())
	if err != nil {
		return fmt.Errorf("watch BGP: %w", err)
	}
	return nil
}

// stop stops a server. It sends no notification to peers that can keep routes, so they do.
func stop(b *server.BgpServer) {
	_ = b.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: true})
	b.Stop()
}

// families returns the address families of a session.
func (s *Speaker) families(p *Peer) []bgp.Family {
	if p.Address.Is4() && !s.cfg.NextHop6.IsValid() {
		return []bgp.Family{bgp.RF_IPv4_UC}
	}
	return []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC}
}

// addPeer lets the session with a peer begin. BFD is for later (setBFD).
func (s *Speaker) addPeer(ctx context.Context, b *server.BgpServer, p *Peer) error {
	if err := b.AddPeer(ctx, &api.AddPeerRequest{Peer: s.peer(p, false)}); err != nil {
		return fmt.Errorf("add BGP peer %s: %w", p.Address, err)
	}
	return nil
}

// setBFD turns BFD on for peers that have a session, and off for others. on is what is on. The library keeps a reset
// by BFD that comes without a session, and ends the next session by it.
func (s *Speaker) setBFD(ctx context.Context, b *server.BgpServer, on map[netip.Addr]bool) error {
	var errs []error
	for i := range s.cfg.Peers {
		p := &s.cfg.Peers[i]
		s.mu.Lock()
		wanted := p.BFD && s.sessions[p.Address].established
		s.mu.Unlock()
		if wanted == on[p.Address] {
			continue
		}
		if _, err := b.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: s.peer(p, wanted)}); err != nil {
			errs = append(errs, fmt.Errorf("set BFD of BGP peer %s: %w", p.Address, err))
			continue
		}
		on[p.Address] = wanted
	}
	return errors.Join(errs...)
}

// peer returns a peer as the library has it.
func (s *Speaker) peer(p *Peer, bfd bool) *api.Peer {
	hold := p.Hold
	if hold == 0 {
		hold = DefaultHold
	}
	a := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: p.Address.String(), PeerAsn: p.AS, AuthPassword: p.Password},
		Timers: &api.Timers{Config: &api.TimersConfig{ConnectRetry: retrySeconds, HoldTime: uint64(hold / time.Second),
			KeepaliveInterval: uint64(hold / time.Second / 3), IdleHoldTimeAfterReset: retrySeconds}},
		GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: uint32(RestartTime / time.Second),
			DeferralTime: deferralSeconds, LocalRestarting: s.cfg.Restarting},
		Transport: &api.Transport{RemotePort: uint32(p.Port)},
	}
	if p.AS == 0 {
		a.Conf.PeerAsn = s.cfg.AS
	}
	if !s.cfg.internal(p) {
		// Hosts often have one number for all: a router then passes a host's prefixes on to hosts of the same number.
		// No loop can come of it, because hosts pass nothing on.
		a.Conf.AllowOwnAsn = 1
		if p.Multihop > 1 {
			a.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(p.Multihop)}
		}
	}
	if bfd {
		a.Bfd = &api.BfdPeerConfig{Enabled: true, Port: server.BfdServerPort, DesiredMinimumTxInterval: bfdMicroseconds,
			RequiredMinimumReceive: bfdMicroseconds, DetectionMultiplier: bfdMultiplier}
	}
	limit := p.MaxPrefixes
	if limit == 0 {
		limit = DefaultMaxPrefixes
	}
	for _, f := range s.families(p) {
		family := &api.Family{Afi: api.Family_Afi(f.Afi()), Safi: api.Family_Safi(f.Safi())}
		a.AfiSafis = append(a.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
			PrefixLimits:      &api.PrefixLimit{Family: family, MaxPrefixes: limit},
		})
	}
	return a
}

// path returns a prefix of this host. An unspecified next hop becomes this host's address in each session; an IPv4
// prefix can have an IPv6 one (RFC 8950).
func (s *Speaker) path(p netip.Prefix) (*apiutil.Path, error) {
	family, hop := bgp.RF_IPv4_UC, netip.IPv4Unspecified()
	if p.Addr().Is6() {
		family, hop = bgp.RF_IPv6_UC, netip.IPv6Unspecified()
		s.mu.Lock()
		if s.nextHop6.IsValid() {
			hop = s.nextHop6
		}
		s.mu.Unlock()
	}
	nlri, err := bgp.NewIPAddrPrefix(p)
	if err != nil {
		return nil, fmt.Errorf("announce %s: %w", p, err)
	}
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)}
	if family == bgp.RF_IPv4_UC {
		next, err := bgp.NewPathAttributeNextHop(hop)
		if err != nil {
			return nil, fmt.Errorf("announce %s: %w", p, err)
		}
		attrs = append(attrs, next)
	} else {
		reach, err := bgp.NewPathAttributeMpReachNLRI(family, []bgp.PathNLRI{{NLRI: nlri}}, hop)
		if err != nil {
			return nil, fmt.Errorf("announce %s: %w", p, err)
		}
		attrs = append(attrs, reach)
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attrs, Age: time.Now().Unix()}, nil
}

func (s *Speaker) advertise(b *server.BgpServer, p netip.Prefix) error {
	path, err := s.path(p)
	if err != nil {
		return err
	}
	if _, err := b.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}}); err != nil {
		return fmt.Errorf("announce %s: %w", p, err)
	}
	return nil
}

func (s *Speaker) withdraw(b *server.BgpServer, p netip.Prefix) error {
	path, err := s.path(p)
	if err != nil {
		return err
	}
	if err := b.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}}); err != nil {
		return fmt.Errorf("withdraw %s: %w", p, err)
	}
	return nil
}
