package examples_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/lab/labtest"
)

// The examples run this test binary as a command that connects to addresses and prints what it
// reads.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "connect" {
		for _, addr := range os.Args[2:] {
			fmt.Println(connect(addr))
		}
		os.Exit(0)
	}
	os.Exit(lab.RunTests(m))
}

func connect(addr string) string {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return "no connection"
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Addresses outside of the network.
const (
	outside = "192.0.2.1"
	another = "198.51.100.1"
)

// serve listens on a free port of an address and calls talk for each client.
func serve(t *testing.T, addr string, talk func(net.Conn)) (host string) {
	t.Helper()
	return labtest.Serve(t, nil, addr+":0", talk).String()
}

// example builds an example and runs it.
func example(t *testing.T, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", program, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var out, errs strings.Builder
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	return out.String(), errs.String()
}

// self returns the path of this binary.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMinimal(t *testing.T) {
	labtest.Outside(t, outside, another)
	server := serve(t, outside, labtest.Reply("hello"))
	if out, _ := example(t, "minimal", self(t), "connect", server); out != "hello\n" {
		t.Errorf("the command printed %q", out)
	}
}

func TestFirewall(t *testing.T) {
	labtest.Outside(t, outside, another)
	yes, no := serve(t, outside, labtest.Reply("yes")), serve(t, another, labtest.Reply("no"))
	out, errs := example(t, "firewall", outside+"/32", self(t), "connect", yes, no)
	if out != "yes\nno connection\n" {
		t.Errorf("the command printed %q", out)
	}
	if want := "refused: tcp to " + no; !strings.Contains(errs, want) {
		t.Errorf("the firewall logged %q, want %q", errs, want)
	}
}

func TestSOCKS5(t *testing.T) {
	labtest.Outside(t, outside, another)
	server := serve(t, outside, labtest.Reply("through the proxy"))
	requested := make(chan string, 1)
	proxy := serve(t, "127.0.0.1", func(c net.Conn) {
		if err := socks(c, requested); err != nil {
			t.Error(err)
		}
	})
	if out, _ := example(t, "socks5", proxy, self(t), "connect", server); out != "through the proxy\n" {
		t.Errorf("the command printed %q", out)
	}
	if got := <-requested; got != server {
		t.Errorf("the proxy was asked for %q, want %q", got, server)
	}
}

// socks implements the part of RFC 1928 that the test needs: CONNECT to an IPv4 address, without
// authentication.
func socks(c net.Conn, requested chan<- string) error {
	var greeting [3]byte
	if _, err := io.ReadFull(c, greeting[:]); err != nil {
		return err
	}
	if _, err := c.Write([]byte{5, 0}); err != nil {
		return err
	}
	var request [10]byte
	if _, err := io.ReadFull(c, request[:]); err != nil {
		return err
	}
	if request[1] != 1 || request[3] != 1 {
		return fmt.Errorf("unexpected request %v", request)
	}
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte(request[4:8])), binary.BigEndian.Uint16(request[8:])).String()
	requested <- addr
	to, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0}); err != nil {
		return err
	}
	_, err = io.Copy(c, to)
	return err
}
