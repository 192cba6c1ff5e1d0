package wiring

import (
	"cmp"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"

	"cleat/bench/container"
	"cleat/lab"
)

// cleatTunnel runs `cleat tunnel up` on both hosts.
func cleatTunnel(nw *Network) error {
	h, err := nw.linkHosts()
	if err != nil {
		return err
	}
	var keys map[int]tunnelKey
	if nw.cfg.Encrypted {
		if keys, err = nw.newTunnelKeys(); err != nil {
			return err
		}
	}
	before := len(nw.programs)
	for side, n := range h.sides() {
		file := filepath.Join(nw.dir, fmt.Sprintf("tunnel%d.yaml", side))
		// The directory's name is unique, and so is the tunnel's: what an earlier tunnel
		// left behind under its own name does no harm.
		name := fmt.Sprintf("%s-%d", filepath.Base(nw.dir), side)
		if err := writeFile(file, tunnelFile(h, side, name, nw.cfg.Scheduler, nw.cfg.Datapath, keys), 0o600); err != nil {
			return err
		}
		if err := nw.start(nw.tunnelRunner(n), lab.Command{Args: []string{lab.Self, "tunnel", "up", file}}); err != nil {
			return err
		}
	}
	return nw.addTunnelledPairs(h, nw.programs[before:])
}

// tunnelRunner is where a side's tunnel runs: on its host, or, with TunnelInRuntime, in a
// container that has the host's network and sees the network's files.
func (nw *Network) tunnelRunner(n *lab.Node) lab.Runner {
	if nw.cfg.ContainerRuntime == nil || !nw.cfg.TunnelInRuntime {
		return n
	}
	nw.nativeEnds = true
	return nw.cfg.ContainerRuntime.On(n, container.Options{TUN: true, Share: []string{nw.dir}})
}

// tunnelKey is the file of one side's private key, and the public key.
type tunnelKey struct{ file, public string }

func (nw *Network) newTunnelKeys() (map[int]tunnelKey, error) {
	keys := map[int]tunnelKey{}
	for side := 1; side <= 2; side++ {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("generate a key: %w", err)
		}
		file := filepath.Join(nw.dir, fmt.Sprintf("tunnel%d.key", side))
		if err := writeFile(file, base64.StdEncoding.EncodeToString(k.Bytes())+"\n", 0o600); err != nil {
			return nil, err
		}
		keys[side] = tunnelKey{file, base64.StdEncoding.EncodeToString(k.PublicKey().Bytes())}
	}
	return keys, nil
}

// tunnelFile returns the tunnel file of one side. Without keys the tunnel is not
// encrypted.
func tunnelFile(h linkedHosts, side int, name, scheduler, datapath string, keys map[int]tunnelKey) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\ndevice: %s\naddress: [%q]\nscheduler: %s\ndatapath: %s\n", name, tunnelDevice, tunnelAddrs[side], cmp.Or(scheduler, "adaptive"), cmp.Or(datapath, "auto"))
	if keys != nil {
		fmt.Fprintf(&b, "key: {private: %q, peer: %q}\n", keys[side].file, keys[3-side].public)
	}
	b.WriteString("paths:\n")
	for i := range h.spec.Links {
		fmt.Fprintf(&b, "  - {name: %s, device: %s, local: %q, remote: %q}\n", linkName(i), linkName(i), h.linkAddr(i, side), h.linkAddr(i, 3-side))
	}
	return b.String()
}
