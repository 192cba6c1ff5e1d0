package tunnel

import (
	"fmt"
	"strings"
	"time"
)

// Package sched compares paths with each other to decide which of them carries data, so
// the last path can't die, and paths that fall silent together don't. What users are
// told follows from answers: a path is silent if several packets of it have not been
// answered for silentAfter, and the peer if no path is answered. Silent paths are used as
// sched decides, so nothing is needed when the peer returns.
//
// A machine that is busy, suspended or stopped must not report a silent peer. So silence
// is measured by watched time, which passes only while the receiving thread runs and all
// sockets have been emptied, and each packet must have had a while for its answer.

const (
	// silentAfter is how long the first unanswered packet of a path has gone without an
	// answer when the path is silent, beyond the round trip. A path without data is probed
	// each probeIdle, so silence is reported 2 to 2.3 s after a peer has died.
	silentAfter = 1500 * time.Millisecond
	// maxAnswerTime bounds the round trip that is added to silentAfter.
	maxAnswerTime = 500 * time.Millisecond
	// minUnanswered packets must have been sent, at least askEvery apart, before a path is
	// silent.
	minUnanswered = 3
	askEvery      = 400 * time.Millisecond
	// maxWatchStep is how much watched time one round of the receiving thread may add. A
	// round waits 100 ms at most, so more means that the thread did not run.
	maxWatchStep = 200 * time.Millisecond
	judgeEvery   = 50 * time.Millisecond // of watched time
)

// answers is what is known about the answers that a path gets. It is guarded by Tunnel.mu.
type answers struct {
	unanswered      int           // packets sent since the last answer, at least askEvery apart
	firstAt, lastAt time.Duration // when the first and the last of them were sent
	firstWatched    time.Duration // watched time of the first

	answered  bool          // since the socket was opened
	at        time.Duration // when the last answer came; 0: never
	watchedAt time.Duration // watched time of the last answer
	silent    bool
}

// sent records that a packet was sent that the peer will answer.
func (a *answers) sent(now, watched time.Duration) {
	switch {
	case a.unanswered == 0:
		a.firstAt, a.firstWatched = now, watched
	case now-a.lastAt < askEvery:
		return
	}
	a.lastAt = now
	a.unanswered++
}

// reopened forgets what was sent by an earlier socket.
func (a *answers) reopened() { *a = answers{at: a.at} }

// watch is the state of watching for answers. It is guarded by Tunnel.mu.
type watch struct {
	time    time.Duration // watched time
	session [2]uint64     // names of the session that the rest is about
	silent  bool          // the peer does not answer

	answeredAt   time.Duration // when the peer last answered; 0: never
	answeredTime time.Duration // watched time of that, or of the session's beginning
	openTime     time.Duration // watched time at which a path was last open
}

// noteAnswer records that the peer has answered what a path has sent. It is called with mu
// held.
func (t *Tunnel) noteAnswer(now time.Duration, p *path) {
	a, w := &p.answers, &t.watch
	a.unanswered, a.answered, a.at, a.watchedAt = 0, true, now, w.time
	w.answeredAt, w.answeredTime = now, w.time
	if w.silent {
		w.silent = false
		t.emit(Event{Kind: PeerAnswers})
	}
	if a.silent {
		a.silent = false
		if t.sender.Path(p.id).Live() {
			t.emit(Event{Path: p.Name, Kind: PathAnswers})
		}
	}
}

// watchAnswers lets watched time pass, and judges paths and peer by it.
func (in *inbound) watchAnswers(now time.Duration) {
	emptied := now // without sockets, nothing can arrive
	for i, p := range in.pollPaths {
		if in.roles[i] == own {
			emptied = min(emptied, in.checkedUntil[p.id])
		}
	}
	if emptied <= in.watchedUntil {
		return
	}
	in.watched += min(emptied-in.watchedUntil, maxWatchStep)
	in.watchedUntil = emptied
	if in.watched-in.judgedAt < judgeEvery {
		return
	}
	in.judgedAt = in.watched
	in.t.mu.Lock()
	defer in.t.mu.Unlock()
	in.t.watch.time = in.watched
	in.t.judgeAnswers(now)
}

// judgeAnswers finds paths, and the peer, that have fallen silent. It is called with mu
// held.
func (t *Tunnel) judgeAnswers(now time.Duration) {
	w, s := &t.watch, &t.session
	if !s.up {
		return
	}
	if names := [2]uint64{s.ownName, s.peerName}; names != w.session {
		w.session, w.answeredTime, w.openTime = names, w.time, w.time
		for _, p := range t.paths {
			if p != nil {
				p.answers.unanswered = 0
			}
		}
	}
	open, answering := false, false
	for _, p := range t.paths {
		if p == nil || p.fd < 0 {
			continue
		}
		open = true
		if a := &p.answers; !a.silent && t.unansweredTooLong(p) {
			a.silent = true
			if t.sender.Path(p.id).Live() {
				t.emit(Event{Path: p.Name, Kind: PathSilent, Err: silentSince(now, a.at)})
			}
		}
		answering = answering || !p.answers.silent && (p.answers.answered || t.unknowable(p))
	}
	if open {
		w.openTime = w.time
	}
	switch {
	case w.silent && answering: // in the compat form, a path that can't be judged was added
		w.silent = false
		t.emit(Event{Kind: PeerAnswers})
	case w.silent, answering, open && w.time-w.answeredTime < silentAfter, !open && w.time-w.openTime < silentAfter:
	default:
		w.silent = true
		t.emit(Event{Kind: PeerSilent, Err: t.silentPeer(now)})
	}
}

// unknowable reports whether a path says nothing about the peer: the compat form has no
// answers unless the peer sends keepalives. It is called with mu held.
func (t *Tunnel) unknowable(p *path) bool { return t.session.compat && p.compat.interval == 0 }

// unansweredTooLong reports whether a path is silent. It is called with mu held.
func (t *Tunnel) unansweredTooLong(p *path) bool {
	a := &p.answers
	switch {
	case t.unknowable(p):
		return false
	case t.session.compat:
		return t.watch.time-a.watchedAt > p.compat.timeout()
	}
	limit := silentAfter + min(t.sender.Path(p.id).SmoothedRTT(), maxAnswerTime)
	return a.unanswered >= minUnanswered && t.watch.time-a.firstWatched >= limit
}

// usedAreSilent reports whether no path in use is answered. It is called with mu held.
func (t *Tunnel) usedAreSilent() bool {
	for _, p := range t.paths {
		if p != nil && p.fd >= 0 && !p.answers.silent && t.sender.Path(p.id).Live() {
			return false
		}
	}
	return true
}

// peerMissed reports whether the peer has not answered something for a while, so that
// it may have restarted. It is called with mu held.
func (t *Tunnel) peerMissed(now time.Duration) bool {
	for _, p := range t.paths {
		if p != nil && p.fd >= 0 && p.answers.unanswered > 0 && now-p.answers.firstAt > peerSilence/2 {
			return true
		}
	}
	return t.watch.silent
}

// silentSince returns the reason why a path counts as silent.
func silentSince(now, answeredAt time.Duration) error {
	if answeredAt == 0 {
		return fmt.Errorf("it has never answered")
	}
	return fmt.Errorf("no answer since %s", time.Now().Add(answeredAt-now).Format(time.TimeOnly))
}

// silentPeer returns since when the peer is silent, and which paths are still used. It is
// called with mu held.
func (t *Tunnel) silentPeer(now time.Duration) error {
	var used []string
	for _, p := range t.paths {
		if p != nil && p.fd >= 0 && t.sender.Path(p.id).Live() {
			used = append(used, p.Name)
		}
	}
	since := silentSince(now, t.watch.answeredAt)
	if len(used) == 0 {
		return fmt.Errorf("%w; no path can be used", since)
	}
	return fmt.Errorf("%w; packets are still sent on %s", since, strings.Join(used, ", "))
}
