package tunnel

// A path's socket may be full: the device behind it is slower than the path was thought to
// be, or stands still. What is left of the run waits as it is, numbered and sealed, and the
// other paths go on.

// dispatch sends the run.
func (o *outbound) dispatch() {
	if !o.run.send(o.t) {
		o.stall()
		return
	}
	if !o.run.kept {
		o.t.mu.Lock()
		defer o.t.mu.Unlock()
		o.run.over(o.t)
	}
}

// stall puts the run aside, and takes another.
func (o *outbound) stall() {
	t, b := o.t, o.run
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.kept { // its packets may be acknowledged, though they have not been sent
		for _, pc := range b.pieces {
			pc.e.refs++
		}
		b.kept = false
	}
	if t.valid(b) {
		t.send.Path(b.p.id).Full = true
	}
	o.stalled = append(o.stalled, b)
	if n := len(o.spare); n > 0 {
		o.run, o.spare = o.spare[n-1], o.spare[:n-1]
		return
	}
	o.run = newBatch()
}

// resume goes on with runs that were put aside. There is one of each path at most.
func (o *outbound) resume() {
	left := o.stalled[:0]
	for _, b := range o.stalled {
		if o.goOn(b) {
			left = append(left, b)
		}
	}
	o.stalled = left
}

// goOn goes on with one run. It reports whether that has to wait on.
func (o *outbound) goOn(b *batch) bool {
	t := o.t
	t.mu.Lock()
	valid := t.valid(b)
	t.mu.Unlock()
	if valid && !b.send(t) {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if sp := t.send.Path(b.p.id); sp != nil && t.paths[b.p.id] == b.p {
		sp.Full = false
	}
	b.over(t)
	o.spare = append(o.spare, b)
	return false
}

// valid reports whether a run may still be sent: its path is in use as it was, in the same
// life. The lock is held.
func (t *Tunnel) valid(b *batch) bool {
	p := t.paths[b.p.id]
	if p != b.p || p.fd != b.fd || t.sess.mine != b.life || !t.sess.up {
		return false
	}
	return t.send.Path(p.id).Live() && (b.keys == nil || !b.keys.spent(t.now()))
}
