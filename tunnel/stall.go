package tunnel

// A path's socket may be full: the device behind it is slower than the path was assumed
// to be, or has stopped. The rest of the run waits as it is, numbered and sealed, and the
// other paths go on.

func (o *outbound) dispatch() {
	if !o.batch.send(o.t) {
		o.setAside()
		return
	}
	if !o.batch.kept {
		o.t.mu.Lock()
		defer o.t.mu.Unlock()
		o.batch.release(o.t)
	}
}

// setAside puts the run aside and takes another batch.
func (o *outbound) setAside() {
	t, b := o.t, o.batch
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.kept { // the peer may acknowledge its packets although they have not been sent
		for _, pc := range b.pieces {
			pc.e.refs++
		}
		b.kept = false
	}
	if t.stillValid(b) {
		t.sender.Path(b.path.id).SocketFull = true
	}
	o.stalled = append(o.stalled, b)
	if n := len(o.spare); n > 0 {
		o.batch, o.spare = o.spare[n-1], o.spare[:n-1]
		return
	}
	o.batch = newBatch()
}

// resume continues the runs that were set aside. There is at most one per path.
func (o *outbound) resume() {
	waiting := o.stalled[:0]
	for _, b := range o.stalled {
		if o.resumeRun(b) {
			waiting = append(waiting, b)
		}
	}
	o.stalled = waiting
}

// resumeRun continues one run. It reports whether the run has to wait longer.
func (o *outbound) resumeRun(b *batch) bool {
	t := o.t
	t.mu.Lock()
	valid := t.stillValid(b)
	t.mu.Unlock()
	if valid && !b.send(t) {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if sp := t.sender.Path(b.path.id); sp != nil && t.paths[b.path.id] == b.path {
		sp.SocketFull = false
	}
	b.release(t)
	o.spare = append(o.spare, b)
	return false
}

// stillValid reports whether a run may still be sent: its path is in use with the same
// socket, in the same session. It is called with mu held.
func (t *Tunnel) stillValid(b *batch) bool {
	p := t.paths[b.path.id]
	if p != b.path || p.fd != b.fd || t.session.ownName != b.sessionName || !t.session.up {
		return false
	}
	return t.sender.Path(p.id).Live() && (b.keys == nil || !b.keys.cantSeal(t.now()))
}
