package wiring

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"

	"cleat/lab"
	"cleat/link"
)

// Addresses of gvproxy's network, which its command line can't change.
var (
	gvGuest = netip.AddrFrom4([4]byte{192, 168, 127, 2})
	gvGate  = netip.AddrFrom4([4]byte{192, 168, 127, 1})
	gvHost  = netip.AddrFrom4([4]byte{192, 168, 127, 254}) // its name for the host's loopback
)

// gvTap is the container's link, gvSSH the first of the ports that each gvproxy
// insists on forwarding to a guest's sshd, gvFrame the longest frame that the
// two say to each other, in bytes: its length has 16 bits.
const (
	gvTap   = "tap0"
	gvSSH   = 20022
	gvFrame = 65535
)

// gvReady is what gvforwarder says when it has opened the device.
const gvReady = "Starting rx/tx loops"

// etherHeader is the length of an Ethernet header in bytes.
const etherHeader = 14

// gvproxy runs gvisor-tap-vsock's gvproxy on the host and its gvforwarder in the
// container, on a TAP device that is made for it: by itself it would ask a DHCP
// client for the address and keep the kernel's MTU.
func gvproxy(nw *Network) error {
	return nw.userMode(helper{loopback: gvHost, attach: attachGvproxy})
}

func attachGvproxy(nw *Network, r rootless) error {
	socket := fmt.Sprintf("%s/gvproxy%d", nw.dir, r.pair)
	if err := nw.start(r.host, lab.Command{Args: []string{"gvproxy", "-listen", "unix://" + socket,
		"-mtu", strconv.Itoa(r.mtu), "-ssh-port", strconv.Itoa(gvSSH + r.pair)}}); err != nil {
		return err
	}
	if err := poll(nw.ctx, func() error { _, err := os.Stat(socket); return err }); err != nil {
		return fmt.Errorf("wait for gvproxy: %w", err)
	}
	tap, err := link.OpenTun(r.container.NS, link.TunSpec{Attrs: link.Attrs{Name: gvTap, MTU: r.mtu}, Mode: link.TunEthernet, Persist: true})
	if err != nil {
		return err
	}
	for _, f := range tap.Files() {
		f.Close() // the device stays for gvforwarder
	}
	frame := min(r.mtu+etherHeader, gvFrame)
	if err := nw.start(r.container, lab.Command{Args: []string{"gvforwarder", "-preexisting", "-iface", gvTap,
		"-mtu", strconv.Itoa(frame), "-url", "unix://" + socket}}); err != nil {
		return err
	}
	// A link that comes up without its program gets no packets for a second
	// (net/core/link_watch.c).
	if err := poll(nw.ctx, func() error { return nw.said(gvReady) }); err != nil {
		return fmt.Errorf("wait for gvforwarder: %w", err)
	}
	if err := r.container.Address(gvTap, netip.PrefixFrom(gvGuest, 24)); err != nil {
		return err
	}
	if err := route(r.container, netip.Prefix{}, gvGate, ""); err != nil {
		return err
	}
	if !r.inbound {
		return nil
	}
	for _, proto := range []string{"tcp", "udp"} {
		if err := expose(nw.ctx, socket, proto, r.port()); err != nil {
			return err
		}
	}
	return nil
}

// expose asks gvproxy for a port forward over its HTTP API.
func expose(ctx context.Context, socket, proto string, port uint16) error {
	at := strconv.Itoa(int(port))
	body, err := json.Marshal(map[string]string{"local": "0.0.0.0:" + at, "remote": gvGuest.String() + ":" + at, "protocol": proto})
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gvproxy/services/forwarder/expose", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("ask gvproxy for port %d/%s: %w", port, proto, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("gvproxy refuses port %d/%s: %s", port, proto, bytes.TrimSpace(said))
	}
	return nil
}
