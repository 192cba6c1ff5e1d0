package overlay

// A Rememberer is a Dataplane that remembers what SetEndpoints was called with when its process ends.
type Rememberer interface {
	// Remembered returns the hosts whose endpoints it has, by network.
	Remembered() (map[string][]string, error)
}

// recall has the dataplane get all endpoints that it remembers from before this process, once the mirror has all
// records: what ended meanwhile is in no update.
func (n *Node) recall() error {
	n.mu.Lock()
	ready := n.endsListed && !n.recalled
	n.mu.Unlock()
	r, ok := n.cfg.Dataplane.(Rememberer)
	if !ready || !ok {
		return nil
	}
	all, err := r.Remembered()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recalled = true
	for network, hosts := range all {
		for _, h := range hosts {
			n.dirty[endpointsOf{network, h}] = true
		}
	}
	return nil
}
