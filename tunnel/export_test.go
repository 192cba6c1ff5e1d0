package tunnel

// SessionName returns this end's name for the session.
func (t *Tunnel) SessionName() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session.ownName
}
