package slirp4netns_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cleat/compat/slirp4netns"
	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/netns"
	"cleat/sandbox"

	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestMain makes the test binary behave as slirp4netns when it is called by that name.
func TestMain(m *testing.M) {
	sandbox.Init()
	if filepath.Base(os.Args[0]) == "slirp4netns" {
		os.Exit(slirp4netns.Main(os.Args[1:], "test"))
	}
	os.Exit(lab.RunTests(m))
}

// program returns a command that runs slirp4netns, not started.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{"slirp4netns"}, args...)
	return cmd
}

// sleeper starts a process in a network namespace of its own.
func sleeper(t *testing.T) (pid string, inside *netns.NS) {
	t.Helper()
	labtest.Outside(t)
	inside, err := netns.New("guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	cmd := exec.Command("sleep", "1000")
	if err := inside.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return fmt.Sprint(cmd.Process.Pid), inside
}

// start starts slirp4netns and waits until it is ready, or has exited. Descriptor 3 is
// for --ready-fd, 4 for --exit-fd; hangUp closes the other end of the latter.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, ready string, hangUp func() error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	exitR, exitW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd = program(args...)
	cmd.ExtraFiles = []*os.File{w, exitR}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	exitR.Close()
	t.Cleanup(func() {
		exitW.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, string(b), exitW.Close
}

func in(t *testing.T, ns *netns.NS, f func() error) {
	t.Helper()
	if err := ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

func ask(network, address, request string) (string, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// leases checks the address that a DHCP client on tap0 gets.
func leases(t *testing.T, ns *netns.NS, want string) {
	t.Helper()
	var client *nclient4.Client
	in(t, ns, func() (err error) {
		client, err = nclient4.New("tap0")
		return err
	})
	defer client.Close()
	lease, err := client.Request(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a := lease.ACK; a.YourIPAddr.String() != want || a.DNS()[0].String() != "10.0.2.3" {
		t.Errorf("lease %v, want %s", a, want)
	}
}

// TestServe follows one process: ready, connections out, a port added by the API, and the
// end by --exit-fd.
func TestServe(t *testing.T) {
	pid, inside := sleeper(t)
	outer := labtest.Serve(t, nil, "127.0.0.1:0", labtest.Reply("outside"))
	labtest.Serve(t, inside, "0.0.0.0:80", labtest.Reply("inside"))
	socket := filepath.Join(t.TempDir(), "api")
	cmd, ready, hangUp := start(t, "-c", "--macaddress", "02:00:5e:00:00:01", "-r", "3", "-e", "4", "-a", socket, "--cidr=10.0.7.0/24", "--mtu=9000", pid, "net7")
	if ready != "1" {
		t.Fatalf("--ready-fd got %q", ready)
	}
	in(t, inside, func() error {
		link, err := net.InterfaceByName("net7")
		if err != nil {
			return err
		}
		addrs, err := link.Addrs()
		if err != nil {
			return err
		}
		if link.MTU != 9000 || link.HardwareAddr.String() != "02:00:5e:00:00:01" || len(addrs) == 0 || addrs[0].String() != "10.0.7.100/24" {
			t.Errorf("MTU %d, MAC %s, addresses %v", link.MTU, link.HardwareAddr, addrs)
		}
		if got, err := ask("tcp", fmt.Sprintf("10.0.7.2:%d", outer.Port()), ""); got != "outside" || err != nil {
			t.Errorf("the host's loopback by the gateway: %q, %v", got, err)
		}
		return nil
	})

	reply, err := ask("unix", socket, `{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"127.0.0.1","host_port":18090,"guest_port":80}}`)
	if reply != `{"return":{"id":1}}` || err != nil {
		t.Errorf("add_hostfwd: %s, %v", reply, err)
	}
	if got, err := ask("tcp", "127.0.0.1:18090", ""); got != "inside" || err != nil {
		t.Errorf("by the forwarded port: %q, %v", got, err)
	}
	reply, err = ask("unix", socket, `{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"127.0.0.1","host_port":18090,"guest_port":81}}`)
	if !strings.Contains(reply, "slirp_add_hostfwd failed") || err != nil {
		t.Errorf("add_hostfwd for the same port: %s, %v", reply, err)
	}
	reply, err = ask("unix", socket, `{"execute":"remove_hostfwd","arguments":{"id":1}}`)
	if reply != `{"return":{}}` || err != nil {
		t.Errorf("remove_hostfwd: %s, %v", reply, err)
	}
	if _, err := ask("tcp", "127.0.0.1:18090", ""); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("by the closed port: %v", err)
	}

	if err := hangUp(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended by --exit-fd: %v", err)
	}
}

// TestReplacesATAP uses a namespace as RootlessKit prepares it.
func TestReplacesATAP(t *testing.T) {
	pid, inside := sleeper(t)
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tap0"}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_DEFAULTS}
	in(t, inside, func() error { return netlink.LinkAdd(tap) })
	for _, f := range tap.Fds {
		f.Close()
	}
	cmd, ready, _ := start(t, "-r", "3", "--disable-host-loopback", pid, "tap0")
	if ready != "1" {
		t.Fatalf("--ready-fd got %q", ready)
	}
	in(t, inside, func() error {
		link, err := netlink.LinkByName("tap0")
		if err != nil {
			return err
		}
		if own, ok := link.(*netlink.Tuntap); !ok || own.Mode != netlink.TUNTAP_MODE_TAP || own.Flags&netlink.TUNTAP_VNET_HDR == 0 {
			t.Errorf("tap0 is %+v", link)
		}
		return netlink.LinkSetUp(link)
	})
	leases(t, inside, "10.0.2.100")
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended by SIGTERM: %v", err)
	}
}

// TestFailures checks that failures exit with 1, and do not write "1" to --ready-fd.
func TestFailures(t *testing.T) {
	pid, _ := sleeper(t)
	rows := []struct{ name, args, text string }{
		{"no such process", "999999 tap0", "/proc/999999/ns/net: no such file or directory"},
		{"no such path", "--netns-type=path /nowhere tap0", "open /nowhere: no such file or directory"},
		{"a socket's path too long", "-a /tmp/" + strings.Repeat("x", 120) + " " + pid + " tap0", "--api-socket: "},
		{"no such descriptor", "-e 99 " + pid + " tap0", "--exit-fd 99: bad file descriptor"},
		{"usage", "--bogus", "slirp4netns: unrecognized option '--bogus'\nUsage: slirp4netns"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			out, err := program(strings.Fields(r.args)...).CombinedOutput()
			exit := new(exec.ExitError)
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), r.text) {
				t.Errorf("%v, want exit code 1 and %q:\n%s", err, r.text, out)
			}
		})
	}
}

// TestHelp checks for what RootlessKit parses.
func TestHelp(t *testing.T) {
	out, err := program("--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"--netns-type", "--enable-ipv6", "--cidr", "--disable-host-loopback", "--api-socket", "--enable-sandbox", "--enable-seccomp"} {
		if !strings.Contains(string(out), option) {
			t.Errorf("the help does not mention %s", option)
		}
	}
}
