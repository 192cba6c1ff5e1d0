package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// PeerState is how the session with a peer is.
type PeerState struct {
	Address     netip.Addr
	AS          uint32
	Established bool
	Since       time.Time // when the session became as it is; zero: it has never been established
	Sent        int       // prefixes announced to the peer
	Received    int       // prefixes of the peer, also those that are not accepted
	BFD         string    // "up", "down"; "": not used
	Error       string    // why the session ended or does not begin, if that is known
}

// State returns the state of all sessions, in the order of Config.Peers.
func (s *Speaker) State() (all []PeerState) {
	s.mu.Lock()
	b, problem := s.server, s.problem
	s.mu.Unlock()
	listed := map[string]*api.Peer{}
	if b != nil {
		// It fails only when the server stops.
		_ = b.ListPeer(context.Background(), &api.ListPeerRequest{EnableAdvertised: true}, func(p *api.Peer) { listed[p.Conf.NeighborAddress] = p })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.cfg.Peers {
		p := &s.cfg.Peers[i]
		e := s.sessions[p.Address]
		one := PeerState{Address: p.Address, AS: p.AS, Established: e.established, Since: e.since, Error: e.last}
		if p.AS == 0 {
			one.AS = s.cfg.AS
		}
		if one.Error == "" && e.established {
			one.Error = problem
		}
		if a := listed[p.Address.String()]; a != nil {
			for _, f := range a.AfiSafis {
				one.Sent += int(f.State.GetAdvertised())
				one.Received += int(f.State.GetReceived())
			}
			if p.BFD {
				one.BFD = "down"
				if a.State.GetBfdState().GetSessionState() == api.BfdSessionState_BFD_SESSION_STATE_UP {
					one.BFD = "up"
				}
			}
		}
		all = append(all, one)
	}
	return all
}

// onEOR notes that a peer has sent all its routes of a family.
func (s *Speaker) onEOR(p *apiutil.Path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[p.PeerAddress]; e != nil && e.eor != nil {
		e.eor[p.Family] = true
	}
	signal(s.changed)
}

// onPeer notes a change of a session.
func (s *Speaker) onPeer(event *apiutil.WatchEventMessage_PeerEvent) {
	if event.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := event.Peer.State.NeighborAddress
	e := s.sessions[at]
	if e == nil {
		return
	}
	defer signal(s.changed)
	if e.closed {
		return
	}
	if event.Peer.State.AdminState == api.PeerState_ADMIN_STATE_PFX_CT {
		s.tooMany(at, e)
		return
	}
	if event.Peer.State.SessionState == bgp.BGP_FSM_ESTABLISHED {
		*e = session{established: true, since: time.Now(), families: both(event.Peer.State.LocalCap, event.Peer.State.RemoteCap), eor: map[bgp.Family]bool{}}
		s.cfg.Log("BGP peer %s: session established", at)
		return
	}
	if text := reason(&event.Peer.State); text != "" {
		s.failed(at, e, text)
	}
	if e.established {
		e.established, e.since, e.eor = false, time.Now(), nil
	}
}

// onFailure notes why a session does not begin.
func (s *Speaker) onFailure(peer netip.Addr, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[peer]; e != nil && !e.established && !e.closed {
		s.failed(peer, e, why)
	}
}

// failed notes and logs why a session has ended or does not begin. It is called with mu held.
func (s *Speaker) failed(at netip.Addr, e *session, why string) {
	if e.established || e.last != why {
		s.cfg.Log("BGP peer %s: %s", at, why)
	}
	e.last = why
}

// tooMany notes that a peer has sent more prefixes than it may. It is called with mu held.
func (s *Speaker) tooMany(at netip.Addr, e *session) {
	limit := uint32(DefaultMaxPrefixes)
	for _, p := range s.cfg.Peers {
		if p.Address == at && p.MaxPrefixes != 0 {
			limit = p.MaxPrefixes
		}
	}
	*e = session{closed: true, since: time.Now(), last: fmt.Sprintf("it has sent more than %d prefixes; the session has ended until the next start", limit)}
	s.cfg.Log("BGP peer %s: %s", at, e.last)
}

const wrongAS = "the peer has another AS number than configured"

// reason returns why a session has ended, or does not begin; "" if nothing is wrong.
func reason(p *apiutil.PeerState) string {
	switch p.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_UNSPECIFIED, api.PeerState_DISCONNECT_REASON_IDLE_TIMER_EXPIRED:
		return ""
	case api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART:
		return "the peer is not there; its routes stay until its restart time is over"
	case api.PeerState_DISCONNECT_REASON_RESTART_TIMER_EXPIRED:
		return "the peer has not come back within its restart time"
	case api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED:
		return "the peer is silent"
	case api.PeerState_DISCONNECT_REASON_INVALID_MSG:
		return "the peer refuses the session or sends invalid messages; compare the AS numbers of both ends"
	case api.PeerState_DISCONNECT_REASON_BAD_PEER_AS:
		return wrongAS
	}
	return p.DisconnectMessage
}

// both returns the address families that both ends have.
func both(local, remote []bgp.ParameterCapabilityInterface) (all []bgp.Family) {
	has := map[bgp.Family]bool{}
	for _, c := range local {
		if m, ok := c.(*bgp.CapMultiProtocol); ok {
			has[m.CapValue] = true
		}
	}
	for _, c := range remote {
		if m, ok := c.(*bgp.CapMultiProtocol); ok && has[m.CapValue] {
			all = append(all, m.CapValue)
			delete(has, m.CapValue)
		}
	}
	return all
}
