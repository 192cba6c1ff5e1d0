package endpoint

// Rekey requests new keys.
func (e *Endpoint) Rekey() { e.tunnel.Rekey() }
