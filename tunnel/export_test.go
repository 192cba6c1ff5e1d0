package tunnel

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
