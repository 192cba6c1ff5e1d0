package wiring

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cleat/lab"
	"cleat/link"
)

// mpt runs MPT's server on both hosts, which reads conf/ in its directory and runs
// the scripts in bin/ there. Those that it comes with give the tunnel its address and
// add routes with net-tools; here that is done already, and they do nothing.
//
// Without -d it reads commands, and dies of the input's end. What it has to complain of
// it writes to standard error; the rest goes on for ever.
func mpt(nw *Network) error {
	p, err := nw.parallel()
	if err != nil {
		return err
	}
	if p.spec.Links > mptPaths {
		return &NotApplicable{Why: fmt.Sprintf("MPT has room for %d links", mptPaths)}
	}
	before := len(nw.procs)
	for side, n := range p.sides() {
		dir := filepath.Join(nw.dir, fmt.Sprintf("mpt%d", side))
		for name, text := range map[string]string{
			"conf/interface.conf":            mptInterface(side),
			"conf/connections/bench.conf":    mptConnection(p, side, nw.cfg.BestSettings),
			"conf/connections/conf.template": mptTemplate,
			"bin/mpt_tunnel_start.sh":        nothing,
			"bin/mpt_peer_routes.sh":         nothing,
		} {
			if err := writeFile(filepath.Join(dir, name), text, 0o700); err != nil {
				return err
			}
		}
		proc, err := nw.startProc(n, lab.Command{Args: []string{"sh", "-c", `cd "$1" && exec mptsrv -d >/dev/null`, "sh", dir}})
		if err != nil {
			return err
		}
		if err := nw.mptReady(n, p.spec.Links, proc); err != nil {
			return err
		}
		if err := nw.awaitDevice(n, side, proc); err != nil {
			return err
		}
	}
	return nw.throughTunnel(p, nw.procs[before:])
}

// mptReady waits until MPT listens on all links, and gives its device the MTU. It reads
// from the device before it knows its links, and does not survive a packet then: the
// device must stay down.
func (nw *Network) mptReady(n *lab.Node, links int, program lab.Proc) error {
	port := fmt.Sprintf(":%04X ", mptPort)
	err := nw.whileRunning([]lab.Proc{program}, func() error {
		var sockets []byte
		err := n.NS.Do(func() (err error) { sockets, err = os.ReadFile("/proc/thread-self/net/udp6"); return err })
		if got := strings.Count(string(sockets), port); err == nil && got < links {
			return fmt.Errorf("it listens on %d of %d links", got, links)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for mptsrv on %s: %w", n, err)
	}
	l, err := link.Find(n.NS, innerDevice)
	if err != nil {
		return err
	}
	return l.SetMTU(mptMTU)
}

const (
	// Ports of MPT: its sample configuration's.
	mptPort    = 23456
	mptCommand = 60456

	mptMTU = 1464 // bytes, for paths of IPv4: its manual's
	// mptWeight is the sample's of each path.
	mptWeight = 10
	mptPaths  = 20 // MAX_PATH of its src/include/multipath.h
)

// mptTemplate is for connections that another host asks for. None does, but MPT does not
// start without it.
const mptTemplate = "[connection]\nname = template\nip_ver = 4\npath_count = 0\nnetwork_count = 0\n"

// mptInterface is MPT's interface.conf. It does not survive the lack of either
// version's address; one of length 0 is none.
func mptInterface(side int) string {
	return fmt.Sprintf("[general]\ntunnel_num = 1\naccept_remote = 1\ncmdport_local = %d\ncmd_timeout = 25\n\n[tun_0]\nname = %s\nmtu = %d\nipv4_addr = %s\nipv6_addr = ::/0\n",
		mptCommand, innerDevice, mptMTU, innerAddrs[side])
}

// mptConnection is one of MPT's connections. Its defaults are its sample's, with
// all paths alike; the best settings weigh them by their rates, and leave a dead path
// as soon as whole seconds allow.
func mptConnection(p parallel, side int, best bool) string {
	keepalive, dead, weight := 5, 11, weights(p, mptWeight)
	if best {
		keepalive, dead = 1, 2
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[connection]\nname = bench\npermission = 3\nip_ver = 4\nip_local = %s\nlocal_port = %d\nip_remote = %s\nremote_port = %d\nremote_cmd_port = %d\n",
		innerAddrs[side].Addr(), mptPort, innerAddrs[3-side].Addr(), mptPort, mptCommand)
	fmt.Fprintf(&b, "path_count = %d\nnetwork_count = 0\nstatus = 0\nreorder_window = 900\nmax_buffdelay_msec = 300\nauth_type = 0\n", p.spec.Links)
	for i := range p.spec.Links {
		out := mptWeight
		if best {
			out = weight[i]
		}
		fmt.Fprintf(&b, "\n[path_%d]\ninterface_name = %s\nip_ver = 4\nprivate_ipaddr = %s\npublic_ipaddr = %[3]s\ngw_ipaddr = %s\nremote_ipaddr = %[4]s\nkeepalive_time = %d\ndead_time = %d\nweight_out = %d\nstatus = 0\n",
			i, linkName(i), p.linkAddr(i, side), p.linkAddr(i, 3-side), keepalive, dead, out)
		if i == 0 {
			b.WriteString("cmd_default = 1\n")
		}
	}
	return b.String()
}
