package wiring

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cleat/lab"
	"cleat/link"
)

const (
	mptPort     = 23456 // UDP, of its sample configuration, as is the next
	mptCommand  = 60456 // of the command socket
	mptMTU      = 1464  // bytes, for paths over IPv4, by its manual
	mptWeight   = 10    // of each path, in its sample configuration
	mptPaths    = 20    // MAX_PATH of its src/include/multipath.h
	emptyScript = "#!/bin/sh\nexit 0\n"
	mptTemplate = "[connection]\nname = template\nip_ver = 4\npath_count = 0\nnetwork_count = 0\n"
)

// mpt runs MPT's server on both hosts. It reads conf/ in its working directory and runs
// the scripts in bin/ there. Its own scripts give the tunnel an address and add routes by
// net-tools; that is done already, so they are empty here.
//
// Without -d it reads commands and dies at the end of its input. Its errors go to
// standard error; standard output is endless and discarded.
func mpt(nw *Network) error {
	h, err := nw.linkHosts()
	if err != nil {
		return err
	}
	if h.spec.Links > mptPaths {
		return &NotApplicable{Why: fmt.Sprintf("MPT has room for %d links", mptPaths)}
	}
	before := len(nw.programs)
	for side, n := range h.sides() {
		dir := filepath.Join(nw.dir, fmt.Sprintf("mpt%d", side))
		for name, text := range map[string]string{
			"conf/interface.conf":         mptInterface(side),
			"conf/connections/bench.conf": mptConnection(h, side, nw.cfg.BestSettings),
			// For connections that another host asks for. There are none, but MPT does
			// not start without the file.
			"conf/connections/conf.template": mptTemplate,
			"bin/mpt_tunnel_start.sh":        emptyScript,
			"bin/mpt_peer_routes.sh":         emptyScript,
		} {
			if err := writeFile(filepath.Join(dir, name), text, 0o700); err != nil {
				return err
			}
		}
		p, err := nw.startProc(n, lab.Command{Args: []string{"sh", "-c", `cd "$1" && exec mptsrv -d >/dev/null`, "sh", dir}})
		if err != nil {
			return err
		}
		if err := nw.awaitMPT(n, h.spec.Links, p); err != nil {
			return err
		}
		if err := nw.awaitDevice(n, side, p); err != nil {
			return err
		}
	}
	return nw.addTunnelledPairs(h, nw.programs[before:])
}

// awaitMPT waits until MPT listens on all links, and then sets its device's MTU. The
// device must stay down until then: MPT reads from it before it knows its links, and
// crashes on a packet.
func (nw *Network) awaitMPT(n *lab.Node, links int, program lab.Proc) error {
	port := fmt.Sprintf(":%04X ", mptPort)
	err := nw.pollRunning([]lab.Proc{program}, func() error {
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
	return onLink(n, tunnelDevice, func(l *link.Link) error { return l.SetMTU(mptMTU) })
}

// mptInterface returns interface.conf. MPT crashes without addresses of both IP versions;
// one of length 0 counts as none.
func mptInterface(side int) string {
	return fmt.Sprintf("[general]\ntunnel_num = 1\naccept_remote = 1\ncmdport_local = %d\ncmd_timeout = 25\n\n[tun_0]\nname = %s\nmtu = %d\nipv4_addr = %s\nipv6_addr = ::/0\n",
		mptCommand, tunnelDevice, mptMTU, tunnelAddrs[side])
}

// mptConnection returns the configuration of a connection. The defaults are those of
// MPT's sample, with equal paths. The best settings weigh the paths by their rates, and
// leave a dead path as fast as whole seconds permit.
func mptConnection(h linkedHosts, side int, best bool) string {
	keepalive, dead, weight := 5, 11, slices.Repeat([]int{mptWeight}, h.spec.Links)
	if best {
		keepalive, dead, weight = 1, 2, weights(h, mptWeight)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[connection]\nname = bench\npermission = 3\nip_ver = 4\nip_local = %s\nlocal_port = %d\nip_remote = %s\nremote_port = %d\nremote_cmd_port = %d\n",
		tunnelAddrs[side].Addr(), mptPort, tunnelAddrs[3-side].Addr(), mptPort, mptCommand)
	fmt.Fprintf(&b, "path_count = %d\nnetwork_count = 0\nstatus = 0\nreorder_window = 900\nmax_buffdelay_msec = 300\nauth_type = 0\n", h.spec.Links)
	for i := range h.spec.Links {
		fmt.Fprintf(&b, "\n[path_%d]\ninterface_name = %s\nip_ver = 4\nprivate_ipaddr = %s\npublic_ipaddr = %[3]s\ngw_ipaddr = %s\nremote_ipaddr = %[4]s\nkeepalive_time = %d\ndead_time = %d\nweight_out = %d\nstatus = 0\n",
			i, linkName(i), h.linkAddr(i, side), h.linkAddr(i, 3-side), keepalive, dead, weight[i])
		if i == 0 {
			b.WriteString("cmd_default = 1\n")
		}
	}
	return b.String()
}
