package wiring

import (
	"os"

	"cleat/lab"
	"cleat/link"
)

// relayed joins each two containers by TUN or TAP devices and the relay of
// package traffic, a process of its own a pair.
func relayed(mode link.TunMode) func(*Network) error {
	return func(nw *Network) error {
		return nw.pairs(func(client, server *lab.Node) error { return nw.relay(mode, client, server) })
	}
}

func (nw *Network) relay(mode link.TunMode, client, server *lab.Node) error {
	var files []*os.File
	for _, n := range []*lab.Node{client, server} {
		// Its link lives as long as a descriptor does: the relay gets a copy.
		t, err := link.OpenTun(n.NS, link.TunSpec{Attrs: link.Attrs{Name: inside, MTU: nw.cfg.MTU}, Mode: mode, VNetHdr: true})
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
	return nw.start(client, lab.Command{Args: []string{lab.Self, "traffic", "relay"}, Extra: files})
}
