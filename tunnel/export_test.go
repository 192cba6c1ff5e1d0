package tunnel

// Rekey has the keys count as worn out.
func (t *Tunnel) Rekey() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.sess.keys; k != nil {
		k.made -= 2 * rekeyAfter
	}
}

// Epoch is that of the keys in use.
func (t *Tunnel) Epoch() uint8 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sess.epoch
}

// Life is what this end calls the connection's life.
func (t *Tunnel) Life() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sess.mine
}
