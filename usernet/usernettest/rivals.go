package usernettest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/internal/program"
)

// Pasta returns the pasta found on PATH, or an error if there is none.
func Pasta() (Path, error) {
	if _, err := program.Find("pasta"); err != nil {
		return Path{}, err
	}
	return Path{
		Name: "pasta", Version: version("passt", "pasta"),
		Lacks: map[Ability]string{
			Policy:       "it has no rules",
			NamePolicy:   "it has no rules",
			HostLoopback: "needs --map-gw, which this way of starting it excludes",
		},
		Start: startPasta,
	}, nil
}

func startPasta(ctx context.Context, s *Topology, o Options) (*Instance, error) {
	const dns4, dns6 = "169.254.1.1", "fd00::53"
	args := []string{"pasta", "--foreground", "--quiet", "--config-net", "--netns-only", "--runas", "0:0", "--no-map-gw",
		"--mtu", strconv.Itoa(o.mtu()), "-T", "none", "-U", "none", "--dns-forward", dns4, "--dns-forward", dns6}
	if o.Auto {
		args = append(args, "-t", "auto", "-u", "auto")
	}
	for _, proto := range []string{"tcp", "udp"} {
		flag := map[string]string{"tcp": "-t", "udp": "-u"}[proto]
		given := o.Auto
		for _, fw := range o.Forwards {
			if fw.Proto == proto {
				args = append(args, flag, pastaPorts(fw))
				given = true
			}
		}
		if !given {
			args = append(args, flag, "none")
		}
	}
	i, err := s.Launch(append(args, "--netns", s.Netns))
	if err != nil {
		return nil, err
	}
	i.Device = uplink
	i.Nameserver = map[Family]netip.AddrPort{V4: netip.MustParseAddrPort(dns4 + ":53"), V6: netip.MustParseAddrPort("[" + dns6 + "]:53")}
	families := []Family{V4, V6}
	if o.mtu() < minIPv6MTU {
		families = families[:1]
	}
	return i, s.awaitConfigured(ctx, i, families...)
}

// pastaPorts returns the forward as a value of pasta's -t or -u.
func pastaPorts(f Forward) string {
	var b strings.Builder
	if a := f.Addr; a.IsValid() && !a.IsUnspecified() {
		b.WriteString(a.String() + "/")
	}
	from := int(f.Port)
	fmt.Fprintf(&b, "%d-%d:%d-%d", from, from+f.Count-1, f.To, int(f.To)+f.Count-1)
	return b.String()
}

// Slirp4netns returns the slirp4netns found on PATH, or an error if there is none.
func Slirp4netns() (Path, error) {
	if _, err := program.Find("slirp4netns"); err != nil {
		return Path{}, err
	}
	return Path{
		Name: "slirp4netns", Version: version("slirp4netns", "slirp4netns"),
		Lacks: map[Ability]string{
			IPv6:         "experimental, and with no address of its own",
			Inbound6:     "forwards are for IPv4",
			ForwardAuto:  "it forwards only what it is told to",
			DNS6:         "it has no IPv6",
			Policy:       "it has no rules",
			NamePolicy:   "it has no rules",
			HostLoopback: "excluded by this way of starting it",
		},
		Start: startSlirp,
	}, nil
}

func startSlirp(ctx context.Context, s *Topology, o Options) (*Instance, error) {
	const device = "tap0"
	socket := filepath.Join(s.Dir, "slirp.sock")
	i, err := s.Launch([]string{"slirp4netns", "--configure", "--mtu=" + strconv.Itoa(o.mtu()),
		"--disable-host-loopback", "--api-socket=" + socket, "--netns-type=path", s.Netns, device})
	if err != nil {
		return nil, err
	}
	i.Device = device
	i.Nameserver = map[Family]netip.AddrPort{V4: netip.MustParseAddrPort("10.0.2.3:53")}
	if err := s.awaitConfigured(ctx, i, V4); err != nil {
		return nil, err
	}
	for _, fw := range o.Forwards {
		for n := range fw.Count {
			if err := slirpForward(ctx, socket, fw, n); err != nil {
				return nil, s.abandon(i, err)
			}
		}
	}
	return i, nil
}

// slirpForward requests the n-th port of a forward over the API socket.
func slirpForward(ctx context.Context, socket string, fw Forward, n int) error {
	var c net.Conn
	if err := await(ctx, func() (err error) {
		c, err = net.Dial("unix", socket)
		return err
	}); err != nil {
		return err
	}
	defer c.Close()
	at := "0.0.0.0"
	if fw.Addr.IsValid() {
		at = fw.Addr.String()
	}
	request := map[string]any{"execute": "add_hostfwd", "arguments": map[string]any{
		"proto": fw.Proto, "host_addr": at, "host_port": int(fw.Port) + n, "guest_port": int(fw.To) + n}}
	if err := json.NewEncoder(c).Encode(request); err != nil {
		return err
	}
	c.(*net.UnixConn).CloseWrite()
	var reply struct {
		Error *struct{ Desc string }
	}
	if err := json.NewDecoder(c).Decode(&reply); err != nil {
		return fmt.Errorf("read slirp4netns' reply: %w", err)
	}
	if reply.Error != nil {
		return fmt.Errorf("slirp4netns refused to forward port %d: %s", int(fw.Port)+n, reply.Error.Desc)
	}
	return nil
}

// version returns a program's version. If the program came in a Debian package, that is
// the package's version, since distributions' builds often don't know theirs.
func version(deb, name string) string {
	if out, err := exec.Command("dpkg-query", "--show", "--showformat=${Version}", deb).Output(); err == nil && len(out) > 0 {
		return string(out)
	}
	out, err := exec.Command(name, "--version").CombinedOutput()
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(first, name+" ")
}
