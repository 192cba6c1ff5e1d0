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
	"strconv"

	"cleat/lab"
	"cleat/link"
)

// Addresses of gvproxy's network, which its command line can't change.
var (
	gvGuest   = netip.AddrFrom4([4]byte{192, 168, 127, 2})
	gvGateway = netip.AddrFrom4([4]byte{192, 168, 127, 1})
	gvHost    = netip.AddrFrom4([4]byte{192, 168, 127, 254}) // stands for the host's loopback
)

const (
	gvTap       = "tap0"                 // the container's link
	gvSSH       = 20022                  // each gvproxy insists on forwarding a port to a guest's sshd; the first pair's
	gvFrame     = 65535                  // bytes; gvproxy and gvforwarder exchange frames with a length of 16 bits
	gvReady     = "Starting rx/tx loops" // gvforwarder prints this when it has opened the device
	etherHeader = 14                     // bytes
)

// gvproxy runs gvisor-tap-vsock's gvproxy on the host, and its gvforwarder in the
// container on an existing TAP device. By itself gvforwarder would get the address from
// a DHCP client and keep the kernel's MTU.
func gvproxy(nw *Network) error {
	return nw.rootless(rootlessDriver{hostAddr: gvHost, attach: attachGvproxy})
}

func attachGvproxy(nw *Network, c rootlessContainer) error {
	socket := fmt.Sprintf("%s/gvproxy%d", nw.dir, c.pair)
	if err := nw.start(c.host, lab.Command{Args: []string{"gvproxy", "-listen", "unix://" + socket,
		"-mtu", strconv.Itoa(c.mtu), "-ssh-port", strconv.Itoa(gvSSH + c.pair)}}); err != nil {
		return err
	}
	if err := nw.awaitFile(socket); err != nil {
		return fmt.Errorf("wait for gvproxy: %w", err)
	}
	tap, err := link.OpenTun(c.node.NS, link.TunSpec{Attrs: link.Attrs{Name: gvTap, MTU: c.mtu}, Mode: link.TunEthernet, Persist: true})
	if err != nil {
		return err
	}
	for _, f := range tap.Files() {
		f.Close() // the device persists for gvforwarder
	}
	frame := min(c.mtu+etherHeader, gvFrame)
	if err := nw.start(c.node, lab.Command{Args: []string{"gvforwarder", "-preexisting", "-iface", gvTap,
		"-mtu", strconv.Itoa(frame), "-url", "unix://" + socket}}); err != nil {
		return err
	}
	// A link that comes up without its program gets no packets for a second
	// (net/core/link_watch.c).
	if err := nw.awaitOutput(gvReady); err != nil {
		return fmt.Errorf("wait for gvforwarder: %w", err)
	}
	if err := c.node.Address(gvTap, netip.PrefixFrom(gvGuest, 24)); err != nil {
		return err
	}
	if err := addRoute(c.node, netip.Prefix{}, gvGateway, ""); err != nil {
		return err
	}
	return publish(c, func(proto string, port uint16) error { return expose(nw.ctx, socket, proto, port) })
}

// expose asks gvproxy for a port forward over its HTTP API.
func expose(ctx context.Context, socket, proto string, port uint16) error {
	p := strconv.Itoa(int(port))
	body, err := json.Marshal(map[string]string{"local": "0.0.0.0:" + p, "remote": gvGuest.String() + ":" + p, "protocol": proto})
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
		reply, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("gvproxy refuses port %d/%s: %s", port, proto, bytes.TrimSpace(reply))
	}
	return nil
}
