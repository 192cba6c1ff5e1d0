package endpoint

// Rekey has the keys count as worn out.
func (e *Endpoint) Rekey() { e.tunnel.Rekey() }
