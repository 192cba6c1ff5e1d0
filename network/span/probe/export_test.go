package probe

// Checked reports whether encapsulated packets to a peer were checked.
func (p *Prober) Checked(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.peers[name]
	return one != nil && one.checking.finished
}
