package wiring

import (
	"cmp"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cleat/bench/container"
	"cleat/lab"
)

// cleatTunnel runs `cleat tunnel up` on both hosts.
func cleatTunnel(nw *Network) error {
	p, err := nw.parallel()
	if err != nil {
		return err
	}
	var keys map[int]tunnelKey
	if nw.cfg.Encrypted {
		if keys, err = nw.tunnelKeys(); err != nil {
			return err
		}
	}
	before := len(nw.procs)
	for side, n := range p.sides() {
		file := filepath.Join(nw.dir, fmt.Sprintf("tunnel%d.yaml", side))
		// The site's directory has a name of its own, and so has the tunnel: what an
		// earlier one left behind under its name is not in the way.
		name := fmt.Sprintf("%s-%d", filepath.Base(nw.dir), side)
		text := tunnelFile(p, side, name, nw.cfg.Scheduler, keys)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the tunnel's file: %w", err)
		}
		if err := nw.start(nw.tunnelRunner(n), lab.Command{Args: []string{lab.Self, "tunnel", "up", file}}); err != nil {
			return err
		}
	}
	return nw.throughTunnel(p, nw.procs[before:])
}

// tunnelRunner is where the tunnel runs: on its host, or, where the experiment
// wants that of a runtime, in a container that has the host's network and sees the
// site's files. The ends are native then.
func (nw *Network) tunnelRunner(n *lab.Node) lab.Runner {
	if nw.cfg.ContainerRuntime == nil || !nw.cfg.TunnelInRuntime {
		return n
	}
	nw.nativeEnds = true
	return nw.in(n, container.Options{TUN: true, Share: []string{nw.dir}})
}

// tunnelKey is one side's own key, in a file, and the public half of it.
type tunnelKey struct{ file, public string }

// tunnelKeys makes a key for each side.
func (nw *Network) tunnelKeys() (map[int]tunnelKey, error) {
	keys := map[int]tunnelKey{}
	for side := 1; side <= 2; side++ {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make a key: %w", err)
		}
		file := filepath.Join(nw.dir, fmt.Sprintf("tunnel%d.key", side))
		text := base64.StdEncoding.EncodeToString(k.Bytes()) + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("write a key: %w", err)
		}
		keys[side] = tunnelKey{file, base64.StdEncoding.EncodeToString(k.PublicKey().Bytes())}
	}
	return keys, nil
}

// tunnelFile is what `cleat tunnel up` reads on one side; without keys the
// tunnel is in the clear.
func tunnelFile(p parallel, side int, name, scheduler string, keys map[int]tunnelKey) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\ndevice: %s\naddress: [%q]\nscheduler: %s\n", name, innerDevice, innerAddrs[side], cmp.Or(scheduler, "adaptive"))
	if keys != nil {
		fmt.Fprintf(&b, "key: {private: %q, peer: %q}\n", keys[side].file, keys[3-side].public)
	}
	b.WriteString("paths:\n")
	for i := range p.spec.Links {
		fmt.Fprintf(&b, "  - {name: %s, device: %s, local: %q, remote: %q}\n", linkName(i), linkName(i), p.linkAddr(i, side), p.linkAddr(i, 3-side))
	}
	return b.String()
}
