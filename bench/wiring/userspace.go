package wiring

import (
	"os"

	"cleat/lab"
	"cleat/link"
)

// relayed joins each two containers by TUN or TAP devices and the relay of
// package traffic, a process of its own a pair.
func relayed(mode link.TunMode) func(*site, *Wired) error {
	return func(s *site, w *Wired) error {
		return s.pairs(w, func(client, server *lab.Node) error { return s.relay(mode, client, server) })
	}
}

func (s *site) relay(mode link.TunMode, client, server *lab.Node) error {
	var files []*os.File
	for _, n := range []*lab.Node{client, server} {
		// Its link lives as long as a descriptor does: the relay gets a copy.
		t, err := link.OpenTun(n.NS, link.TunSpec{Attrs: link.Attrs{Name: inside, MTU: s.MTU}, Mode: mode, VNetHdr: true})
		if err != nil {
			return err
		}
		for _, f := range t.Files() {
			defer f.Close()
		}
		if err := t.OffloadAll(); err != nil {
			return err
		}
		files = append(files, t.Files()...)
	}
	return s.start(client, lab.Command{Args: []string{lab.Self, "traffic", "relay"}, Extra: files})
}
