package tunnel

// Life is what this end calls the connection's life.
func (t *Tunnel) Life() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sess.mine
}
