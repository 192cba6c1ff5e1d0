package endpoint_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/tunnel"
)

// mptSettings are the settings of MPT as the right end of a testbed.
type mptSettings struct {
	outside         []int // of each path
	inside          int   // MPT carries only one family
	keepalive, dead int   // seconds
}

// newMPTTestbed runs MPT's server as the right end. Its paths are ours, with the port of
// RFC 8086; our side only sets the form.
func newMPTTestbed(t *testing.T, p mptSettings, form string) *testbed {
	t.Helper()
	if _, err := exec.LookPath("mptsrv"); err != nil {
		t.Skip("mptsrv is not on the PATH: build github.com/SPYFF/mpt")
	}
	b := newTestbed(t, topology{outside: p.outside, more: form, notReady: true})
	left, right := b.ends[0], b.ends[1]
	right.status() // it has started, so nothing of it arrives after kill
	right.kill()
	right.startMPT(p)
	eventually(t, 10*time.Second, func() bool { s := left.status(); return s.Up && s.Form == tunnel.Compat },
		func() string { return "left does not use the compat form" })
	return b
}

const (
	tunnelPort = 4754
	// mptMTU is the MTU that paths of 1500 bytes leave over IPv6, in bytes.
	mptMTU = 1500 - 40 - 8 - 8
	// noop replaces the scripts that MPT runs: addresses and routes exist already.
	noop = "#!/bin/sh\nexit 0\n"
)

// startMPT starts MPT in a directory of its own, and gives its device addresses when it
// listens: a packet that arrives before that makes it exit.
func (e *end) startMPT(p mptSettings) {
	e.t.Helper()
	dir := e.t.TempDir()
	for name, text := range map[string]string{
		"conf/interface.conf":            fmt.Sprintf("[general]\ntunnel_num = 1\n[tun_0]\nname = tunnel0\nipv4_addr = %s\nipv6_addr = %s\n", innerNet(1, 4), innerNet(1, 6)),
		"conf/connections/cleat.conf":    p.connection(),
		"conf/connections/conf.template": "[connection]\nname = template\nip_ver = 4\npath_count = 0\nnetwork_count = 0\n",
		"bin/mpt_tunnel_start.sh":        noop,
		"bin/mpt_peer_routes.sh":         noop,
	} {
		must(e.t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(e.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	log, err := os.Create(e.file + ".log")
	must(e.t, err)
	defer log.Close()
	e.proc, err = e.node.Start(lab.Command{Args: []string{"sh", "-c", `cd "$1" && exec mptsrv -d`, "sh", dir}, Stdout: log, Stderr: log})
	must(e.t, err)
	eventually(e.t, 5*time.Second, func() bool {
		var sockets []byte
		must(e.t, e.node.NS.Do(func() (err error) { sockets, err = os.ReadFile("/proc/thread-self/net/udp6"); return err }))
		return strings.Count(string(sockets), fmt.Sprintf(":%04X ", tunnelPort)) == len(p.outside)
	}, func() string { return "MPT does not listen on all paths" })
	l := e.link("tunnel0")
	must(e.t, l.SetMTU(mptMTU))
	for _, family := range []int{4, 6} {
		must(e.t, l.AddAddr(innerNet(1, family)))
	}
	must(e.t, l.Up())
}

// connection returns MPT's connection file for the right end.
func (p mptSettings) connection() string {
	var b strings.Builder
	fmt.Fprintf(&b, "[connection]\nname = cleat\npermission = 3\nip_ver = %d\nip_local = %s\nlocal_port = %d\nip_remote = %s\nremote_port = %[3]d\nremote_cmd_port = 60456\n",
		p.inside, innerAddr(1, p.inside), tunnelPort, innerAddr(0, p.inside))
	fmt.Fprintf(&b, "path_count = %d\nnetwork_count = 0\nstatus = 0\nreorder_window = 900\nmax_buffdelay_msec = 300\nauth_type = 0\n", len(p.outside))
	for path, family := range p.outside {
		ours, theirs := outerPrefix(1, path, family).Addr(), outerPrefix(0, path, family).Addr()
		fmt.Fprintf(&b, "\n[path_%d]\ninterface_name = %s\nip_ver = %d\nprivate_ipaddr = %s\npublic_ipaddr = %[4]s\ngw_ipaddr = %s\nremote_ipaddr = %[5]s\nkeepalive_time = %d\ndead_time = %d\nweight_out = 10\nstatus = 0\n",
			path, deviceName(path), family, ours, theirs, p.keepalive, p.dead)
		if path == 0 {
			b.WriteString("cmd_default = 1\n")
		}
	}
	return b.String()
}

// receivedBytes returns the bytes received by a device.
func (e *end) receivedBytes(device string) (bytes uint64) {
	e.t.Helper()
	var text []byte
	must(e.t, e.node.NS.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/dev"); return err }))
	for line := range strings.Lines(string(text)) {
		if name, rest, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == device {
			_, err := fmt.Sscan(rest, &bytes)
			must(e.t, err)
		}
	}
	return bytes
}

// TestMPT uses MPT as the other end of the compat form over two paths.
func TestMPT(t *testing.T) {
	for _, tt := range []struct {
		name, form      string
		outside, inside int
	}{
		{"IPv4 in IPv4", "form: compat", 4, 4},
		{"IPv4 in IPv6", "form: compat", 6, 4},
		{"IPv6 in IPv4", "form: compat", 4, 6},
		{"IPv6 in IPv6, form auto", "", 6, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newMPTTestbed(t, mptSettings{outside: []int{tt.outside, tt.outside}, inside: tt.inside}, tt.form)
			b.transferBothWays(tt.inside)
			for i := range b.ends {
				b.waitEvenShare(i, tt.inside)
			}
		})
	}
}

// waitEvenShare waits until both paths deliver their share to an end.
func (b *testbed) waitEvenShare(i, family int) {
	b.t.Helper()
	e := b.ends[i]
	var got [2]uint64
	eventually(b.t, 10*time.Second, func() bool {
		before := [2]uint64{e.receivedBytes(deviceName(0)), e.receivedBytes(deviceName(1))}
		b.transferBothWays(family)
		got = [2]uint64{e.receivedBytes(deviceName(0)) - before[0], e.receivedBytes(deviceName(1)) - before[1]}
		return min(got[0], got[1]) > swapBytes/4
	}, func() string {
		return fmt.Sprintf("%s received %d bytes over its paths, of %d", e.name, got, swapBytes)
	})
}

const swapBytes = 256 << 10

// transferBothWays sends bytes both ways, and a datagram.
func (b *testbed) transferBothWays(family int) {
	b.t.Helper()
	for from := range b.ends {
		transferTCP(b.t, b.ends[from].node, b.ends[1-from].node, innerAddr(1-from, family), swapBytes)
		d := openDatagrams(b.t, b.ends[from].node, b.ends[1-from].node, innerAddr(from, family), innerAddr(1-from, family))
		d.sendUntilArrived(b.t, 1200)
	}
}

// TestMPTLosesPath makes MPT expect keepalives and waits longer than its timeout, then
// makes a path drop everything and pass packets again: both ends must leave it and use it
// again.
func TestMPTLosesPath(t *testing.T) {
	b := newMPTTestbed(t, mptSettings{outside: []int{4, 4}, inside: 4, keepalive: 1, dead: 2}, "form: compat")
	left := b.ends[0]
	lives := func(want string) {
		t.Helper()
		var got string
		eventually(t, 20*time.Second, func() bool { got = strings.Join(left.live(), " "); return got == want },
			func() string { return fmt.Sprintf("left uses %q, want %q", got, want) })
	}
	// MPT checks each second, and requests keepalives from the other end for 3 s before
	// it leaves a path.
	for begun := time.Now(); time.Since(begun) < 9*time.Second; time.Sleep(100 * time.Millisecond) {
		b.transferBothWays(4)
	}
	if text, err := os.ReadFile(b.ends[1].file + ".log"); err != nil || strings.Contains(string(text), "no keepalive received") {
		t.Errorf("%v: MPT receives no keepalives", err)
	}
	if s := left.status(); s.Invalid > 0 {
		t.Errorf("%d invalid packets", s.Invalid)
	}
	b.waitEvenShare(0, 4)
	s := connect(t, left.node, b.ends[1].node, innerAddr(1, 4))
	r := connect(t, b.ends[1].node, left.node, innerAddr(0, 4))
	b.blackhole(0, true)
	lives(deviceName(1))
	for _, c := range []stream{s, r} { // opened earlier, and intact
		if _, err := c.send(t.Context(), 3, swapBytes); err != nil {
			t.Error(err)
		}
	}
	b.transferBothWays(4)
	b.blackhole(0, false)
	lives(deviceName(0) + " " + deviceName(1))
	for i := range b.ends {
		b.waitEvenShare(i, 4)
	}
}
